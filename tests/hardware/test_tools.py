"""Programs that are missing, hang, fail or print without end; real ones, made in a temporary folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adaptft.hardware.tools import ToolError, ToolMissing, run_tool

# what the program does -> what the error says
FAULTS = {
    "sleep 60": "gives no answer in 0.5 s",
    "sleep 60 & sleep 60": "gives no answer in 0.5 s",
    "trap '' TERM; while :; do :; done": "gives no answer in 0.5 s",
    "exec >&-; sleep 60": "gives no answer in 0.5 s",
    "echo; echo Failed to talk to the driver; exit 9": "fails with status 9: Failed to talk to the driver",
    "yes rubbish": "prints without end",
    "kill -SEGV $$": "fails with status -11: nothing",
}


def program(folder: Path, body: str, name: str = "made-up-tool") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("body", FAULTS)
def test_a_faulty_program_gives_a_reason_in_time(body: str, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match=FAULTS[body]):
        run_tool(str(program(tmp_path, body)), timeout_seconds=5 if "yes" in body else 0.5)
    assert time.monotonic() - start < 4


def test_a_program_that_works_gives_its_text_in_plain_english(tmp_path: Path) -> None:
    path = program(tmp_path, r'echo "$LC_ALL $1"; echo complaint >&2; printf "\377"')
    assert run_tool(str(path), "-L", timeout_seconds=5) == "C -L\n\ufffd"


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ToolMissing, match="made-up-tool is not installed"):
        run_tool("made-up-tool", timeout_seconds=1)


def test_a_program_that_cannot_start_is_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    with pytest.raises(ToolError, match="cannot be started"):
        run_tool(str(path), timeout_seconds=1)
