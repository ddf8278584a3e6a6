"""The only place that starts programs. Whatever a program does, the caller gets its text or a reason."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time

from adaptft.hardware.text import first_line

_MOST_BYTES = 1024**2


class ToolError(Exception):
    """A program that is missing, hangs, fails or prints without end; the message is fit for a note."""


class ToolMissing(ToolError):
    """There is no such program on the PATH."""


def is_there(program: str) -> bool:
    """True where ``program`` is on the PATH."""
    return shutil.which(program) is not None


def run_tool(*command: str, timeout_seconds: float) -> str:
    """What ``command`` prints, its locale set to C and its complaints dropped.

    Raises:
        ToolError: in all other cases; a program that does not end is killed with all its children, and one that
            cannot be killed (stuck in the driver) is left behind.
    """
    if not is_there(command[0]):
        raise ToolMissing(f"{command[0]} is not installed")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as cause:
        raise ToolError(f"{command[0]} cannot be started: {cause.strerror}") from cause
    deadline = time.monotonic() + timeout_seconds
    try:
        text = _read(process, deadline).decode(errors="replace")
        status = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
    except (subprocess.TimeoutExpired, _TooMuch) as cause:
        _kill(process)
        how = "prints without end" if isinstance(cause, _TooMuch) else f"gives no answer in {timeout_seconds:g} s"
        raise ToolError(f"{' '.join(command)} {how}") from cause
    if status:
        raise ToolError(f"{' '.join(command)} fails with status {status}: {first_line(text)}")
    return text


class _TooMuch(Exception):
    pass


def _read(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert process.stdout is not None
    received = bytearray()
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            rest = deadline - time.monotonic()
            if rest <= 0 or not selector.select(rest):
                raise subprocess.TimeoutExpired(process.args, 0)
            if not (block := os.read(stream.fileno(), 65536)):
                return bytes(received)
            received += block
            if len(received) > _MOST_BYTES:
                raise _TooMuch


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
