"""The driver for Ray: a Python file that has each machine run adaptft with its place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planned_jobs import a_job

from adaptft.jobs.ray import driver

CLUSTER = Path(__file__).parent / "ray_cluster"


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_driver_runs_adaptft_once_on_each_machine(nodes, tmp_path):
    job = a_job(nodes, dataset=("it's my data.jsonl",), system='"quoted"\nand two lines')
    (tmp_path / "job.py").write_text(driver(job, cpus=4))
    (tmp_path / "adaptft").write_text(
        '#!/bin/bash\n[ -z "$RANK$MASTER_ADDR" ] || exit 9\nprintf "%s\\0" "$@" >> "$CALLS"; printf "\\0" >> "$CALLS"\n'
    )
    (tmp_path / "adaptft").chmod(0o755)
    environment = os.environ | {
        "PYTHONPATH": str(CLUSTER), "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"),
    }  # fmt: skip
    subprocess.run([sys.executable, str(tmp_path / "job.py")], env=environment, check=True)
    calls = [call.split("\0") for call in (tmp_path / "calls").read_text().removesuffix("\0\0").split("\0\0")]
    place = ["--nnodes", str(nodes), "--node_rank", "{}", "--master_addr", "10.0.0.1", "--master_port", "29500"]
    for rank, call in enumerate(calls):
        assert call == [*job.words[1:], *([w.format(rank) for w in place] if nodes > 1 else [])]
    assert len(calls) == nodes


def test_the_driver_asks_for_all_gpus_of_the_plan():
    assert 'RESOURCES = {"CPU": 4, "GPU": 8}' in driver(a_job(), cpus=4)
    assert "max_failures=3" in driver(a_job(), cpus=4)
