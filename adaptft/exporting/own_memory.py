"""Peak of the memory that this process cannot give back: its own pages, mapped files apart.

Weights on disk are read through mapped files. Their pages count as resident while there is room, and the system takes
them back as soon as there is none, so they say nothing about how much memory is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")
_OWN = ("RssAnon", "RssShmem")
_INTERVAL_SECONDS = 0.1


class Peak:
    """The largest value seen; None where the system does not tell (anything but Linux)."""

    def __init__(self) -> None:
        self.num_bytes: int | None = None

    def look(self) -> None:
        """Take the present value in."""
        now = own_bytes()
        if now is not None:
            self.num_bytes = max(now, self.num_bytes or 0)


@contextmanager
def watched() -> Iterator[Peak]:
    """Watch this process for the block, ten times a second."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            peak.look()

    thread = threading.Thread(target=watch, name="own-memory", daemon=True)
    peak.look()
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
        peak.look()


def own_bytes() -> int | None:
    """Resident memory of this process without mapped files."""
    if not _STATUS.is_file():
        return None
    lines = (line.partition(":") for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines())
    found = {name: value.split()[0] for name, _, value in lines if name in _OWN}
    return sum(map(int, found.values())) * 1024 if found else None
