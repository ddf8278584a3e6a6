"""Tokenised rows kept within a tenth of their disk: those that were used longest ago go first."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

SHARE_OF_DISK = 0.1
FRESH_SECONDS = 24 * 3600
"""What was used since then stays, whatever its size: a run may be about to read it."""


def mark_used(folder: Path) -> None:
    """Note that ``folder`` of the cache is used now; a cache that may not be written stays as it is."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def prune(cache: Path) -> None:
    """Remove old rows of all kinds (``cache/KIND/KEY``) until they are within ``SHARE_OF_DISK``, and what killed
    processes left half-written. Files that another process has mapped stay readable for it."""
    with contextlib.suppress(FileNotFoundError):  # another process prunes at the same time
        _prune(cache, time.time() - FRESH_SECONDS)


def _prune(cache: Path, oldest: float) -> None:
    folders = sorted((path.stat().st_mtime, path) for path in cache.glob("*/*") if path.is_dir())
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for _, path in folders}
    excess = sum(sizes.values()) - SHARE_OF_DISK * shutil.disk_usage(cache).total
    for used, path in folders:
        is_partial = bool(path.suffix)
        if used < oldest and (is_partial or excess > 0):
            shutil.rmtree(path, ignore_errors=True)
            excess -= sizes[path]
