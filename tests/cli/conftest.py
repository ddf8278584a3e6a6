"""The command line as a process."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from adaptft.cli import group
from adaptft.cli.errors import run as run_to_status

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def adaptft() -> Run:
    def run(*words: str, **kwargs) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "adaptft", *words], capture_output=True, text=True, timeout=60, check=False, **kwargs
        )

    return run


@pytest.fixture
def adaptft_here(capfd) -> Run:
    """The same in this process, for commands whose imports take seconds."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        capfd.readouterr()
        status = run_to_status(lambda: group.main(list(words), prog_name="adaptft", standalone_mode=False))
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, status, out, err)

    return run
