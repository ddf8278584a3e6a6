"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from adaptft.errors import OutputError


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place when the block ends well, and vanishes otherwise.

    It vanishes after SIGTERM too, which ends Python without clearing up where nobody listens to it.

    Raises:
        OutputError: the disk is full.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        _sigterm_as_interrupt(),
        tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work,
    ):
        partial = Path(work) / folder.name
        partial.mkdir()
        try:
            yield partial
        except OSError as cause:
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OutputError(
                f"The disk of {folder.parent} is full; nothing was kept.",
                fix="Free some space, or give a folder on another disk with --output_dir.",
            ) from cause
        if folder.exists():
            folder.rename(Path(work) / "replaced")
        partial.rename(folder)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Only the main thread may set signal handlers; in others SIGTERM stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
