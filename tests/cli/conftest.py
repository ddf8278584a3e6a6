"""The command line as a process."""

import subprocess
import sys
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def adaptft() -> Run:
    def run(*words: str, **kwargs) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "adaptft", *words], capture_output=True, text=True, timeout=60, check=False, **kwargs
        )

    return run
