"""A server as a child process: its own process group, its log lines kept, its end clean."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from adaptft.errors import MissingPackage, RequestError, ServeError

KEPT_LINES = 40
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded before any fork: a forked child should load nothing."""
_ERROR_LINE = re.compile(r"(?:^|\s)[\w.]*(?:Error|Exception)\b: \S")
_HINTS = (
    (r"out of memory|OutOfMemory|free memory|No available memory", "Lower --max_model_len or use a smaller model."),
    (r"address already in use|Errno 98", "Choose another port: --port"),
    (r"No module named", "Mend the engine's environment: the module is named above."),
    (r"NVIDIA driver|no CUDA-capable|libcuda", "The engine's build needs a GPU: see `adaptft probe`."),
)


class Child:
    """A started process. ``log`` gets every line that it prints, standard output and error together."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Callable[[str], None]) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as cause:
            raise MissingPackage(
                f"Cannot run {command[0]}: {cause.strerror}.", fix="Name an interpreter that exists: --vllm-python"
            ) from cause
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            log(line.rstrip())

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def failure(self, what: str) -> ServeError:
        """Why the process is dead, from its last lines; ``what`` names it in the message."""
        self._reader.join(timeout=2)
        last = self.telling_line()
        fix = next((fix for pattern, fix in _HINTS if re.search(pattern, last, re.IGNORECASE)), "Read its log above.")
        return ServeError(f"{what} ended by itself ({_describe_exit(self.exit_code)}): {last}", fix=fix)

    def telling_line(self) -> str:
        """The last line that names an error, else the last one."""
        lines = [line for line in self._lines if line.strip()]
        errors = [line for line in lines if _ERROR_LINE.search(line)]
        return (errors or lines or ["it printed nothing"])[-1].strip()

    def stop(self, drain_seconds: float) -> None:
        """Ask the process to finish what it is answering; after ``drain_seconds`` end its whole group.

        Workers that outlive their parent belong to the group and are ended too.
        """
        try:
            if self.exit_code is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=drain_seconds)
        finally:
            self._kill_group()
            self._process.wait()
            self._reader.join(timeout=2)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the end of the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)


def _end_with_parent() -> None:
    """Runs in the child before the engine: Linux sends it SIGTERM when adaptft dies, even of SIGKILL.

    Else a killed adaptft would leave an engine behind that holds the GPU.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def check_port(host: str, port: int) -> None:
    """Refuse an address that cannot be bound, before anything is started.

    Raises:
        ServeError: the port is taken or not allowed, or the host is no address of this machine.
        RequestError: there is no such port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError as cause:
            raise RequestError(f"There is no port {port}.", fix="Ports are 1 to 65535.") from cause
        except OSError as cause:
            of_port = cause.errno in (errno.EADDRINUSE, errno.EACCES)
            port_fix = f"Choose another port, such as --port {_free_port(family)}, or stop what uses it."
            raise ServeError(
                f"Cannot serve on {host}:{port}: {cause.strerror}.",
                fix=port_fix if of_port else "Give an address of this machine: --host 127.0.0.1",
            ) from cause


def _free_port(family: int) -> int:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "still running"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
