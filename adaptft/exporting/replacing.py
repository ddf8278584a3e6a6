"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptft.errors import OutputError


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place when the block ends well, and vanishes otherwise.

    Raises:
        OutputError: the disk is full.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
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
