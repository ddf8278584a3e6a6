"""SIGKILL at random moments, saves included: the run goes on bit for bit (``benchmarks/kill_anywhere.py`` does it)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_that_is_killed_equals_one_that_is_not(tiny_qwen2):
    pytest.importorskip("tensorboard")
    script = str(ROOT / "benchmarks" / "kill_anywhere.py")
    done = subprocess.run(
        [sys.executable, script, str(tiny_qwen2), "--kills", "3"], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert (done.returncode, result["kills"]) == (0, 3), result
    assert (result["differing"], result["half_checkpoints"], result["failed"]) == ([], [], [])
