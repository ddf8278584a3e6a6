"""Ends a process that was asked to end and does not.

Python calls a signal's handler between two of its own instructions: a main thread inside a collective, a kernel or a
share that hangs never comes to one. Its C part writes the signal's number into a file descriptor at once, though, and a
thread waits at the other end. It ends the process without asking anybody, so it knows beforehand what it will say and
touches no file.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

END_SECONDS = 3.0
"""What is left for tidying up once a signal's time is over, or after a second signal."""
SAVE_SECONDS = 600.0
"""A checkpoint or result may take so long to write after a signal: large ones on slow disks do."""
UNHEARD = "it was asked to end, and did not"
STATUS = 130
TERMINAL = 2
"""stderr's file descriptor, whoever has replaced ``sys.stderr``."""
_STOP, _ARRIVED = 0, 255
"""Bytes beside those of signals, which count from 1 to 64."""


@dataclass(slots=True)
class Watchdog:
    """Waits for signals and for what the main thread says of itself.

    Args:
        signals: numbers that ask the process to end; others are none of its business.
        grace_seconds: from the first signal to a step's end.
        said: what to tell the person on the first signal; empty for nothing.
        last_words: what is kept, and how to go on from it.
        counts_again: a second signal leaves ``END_SECONDS`` only.
    """

    signals: frozenset[int]
    grace_seconds: float
    said: Callable[[], bytes]
    last_words: Callable[[], str]
    counts_again: bool = True
    _deadline: float | None = None
    _came: int = 0
    _why: str = ""
    _write: socket.socket = field(init=False)
    _read: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)

    @property
    def descriptor(self) -> int:
        """Where the C part of Python's signal handling writes."""
        return self._write.fileno()

    def arrived(self) -> None:
        """The main thread is alive: it has reached a step's end, and writes what is to be kept."""
        self._write.send(bytes([_ARRIVED]))

    def stop(self) -> None:
        """Wait no longer."""
        self._write.send(bytes([_STOP]))

    def close(self) -> None:
        """Give the descriptors back, once nobody writes there."""
        self._read.close()
        self._write.close()

    def watch(self) -> None:
        """Until ``stop``; in a thread of its own."""
        while True:
            self._read.settimeout(None if self._deadline is None else max(self._deadline - time.monotonic(), 1e-3))
            try:
                content = self._read.recv(1)
            except TimeoutError:
                self._end()
                return
            if not content or content[0] == _STOP:
                return
            if content[0] == _ARRIVED:
                self._give(SAVE_SECONDS, f"its files took more than {SAVE_SECONDS:.0f} s")
            elif content[0] in self.signals:
                self._signal()

    def _signal(self) -> None:
        self._came += 1
        if self._came == 1:
            os.write(TERMINAL, self.said())
            self._give(self.grace_seconds + END_SECONDS, UNHEARD)
        elif self.counts_again and self._came == 2:
            self._give(END_SECONDS, UNHEARD)
        elif self.counts_again:
            self._end()

    def _give(self, seconds: float, why: str) -> None:
        """So many seconds from now; nothing where no signal came."""
        if self._came:
            self._deadline, self._why = time.monotonic() + seconds, why

    def _end(self) -> None:
        """Say what is kept and where every thread stands, and end here and now."""
        os.write(TERMINAL, b"\nWhere the process stood when it was ended:\n")
        faulthandler.dump_traceback(TERMINAL, all_threads=True)
        os.write(TERMINAL, f"\nEnded: {self._why}. {self.last_words()}\n".encode())
        os._exit(STATUS)


@contextmanager
def watching(dog: Watchdog) -> Iterator[None]:
    """Have ``dog`` see all signals that come inside; in the main thread only."""
    thread = threading.Thread(target=dog.watch, name="watchdog", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(dog.descriptor, warn_on_full_buffer=False)
    _at_fork.current = dog.descriptor
    try:
        yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=before == -1)
        _at_fork.current = None
        dog.stop()
        thread.join()
        dog.close()


@dataclass(slots=True)
class _AtFork:
    """Workers that read data inherit the descriptor; a terminal's Ctrl-C reaches them too, and must count once."""

    current: int | None = None

    def child(self) -> None:
        if self.current is not None:
            signal.set_wakeup_fd(-1)
            self.current = None


_at_fork = _AtFork()
os.register_at_fork(after_in_child=_at_fork.child)
