"""The examples run as they stand; the demo, which takes minutes, is run by hand and by ``make demo``."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> None:
    runpy.run_path(str(EXAMPLES / name))["main"](*arguments)


def test_gpus_are_compared_and_those_that_are_too_small_are_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    run("compare_gpus.py", "qwen2.5-32b", "qlora")
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "does not fit: needs" in lines["t4"]
    assert "tokens/s" in lines["a100-80g"]
    assert "fp8" in lines["h100"]
    assert "fp8" not in lines["a100-80g"]


def test_python_trains_without_the_command_line(
    tiny_qwen2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    rows = [{"instruction": f"Say {word}.", "output": word} for word in ("apple", "pear", "plum", "fig") * 4]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run("train_in_python.py", str(tiny_qwen2), str(tmp_path / "rows.jsonl"), str(tmp_path / "run"))
    assert "in 10 steps" in capsys.readouterr().out
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()
