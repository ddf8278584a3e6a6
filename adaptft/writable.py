"""Whether a result can be written where it should go: tried, before minutes of work, and nothing is left behind.

Permission bits do not say it: /proc and read-only disks look writable to root.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from adaptft.errors import OutputError


def check_folder(folder: Path, *, option: str) -> None:
    """Make sure that files can be written into ``folder``, which need not exist yet.

    Args:
        option: what the user names the folder with (``--output_dir``).

    Raises:
        OutputError: a part of its path is a file, or the disk refuses.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    fix = f"Choose another {option}."
    if not existing.is_dir():
        raise OutputError(f"Cannot write to {folder}: {existing} is a file.", fix=fix)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".adaptft-", dir=existing))
    except OSError as cause:
        raise OutputError(f"Cannot write to {folder}: {_why(existing, cause)}.", fix=fix) from cause


def check_file(file: Path, *, option: str) -> None:
    """Make sure that ``file`` can be written; its folder must be there.

    Raises:
        OutputError: it is a folder, or its folder is missing or refuses.
    """
    fix = f"Name a file in a folder that is there: {option} FILE"
    if file.is_dir():
        raise OutputError(f"{option} {file} is a folder.", fix=fix)
    parent = file.absolute().parent
    if not parent.is_dir():
        raise OutputError(f"{option} {file} cannot be written: there is no folder {parent}.", fix=fix)
    if file.exists() and not os.access(file, os.W_OK):
        raise OutputError(f"{option} {file} cannot be written: it is read-only.", fix=fix)
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".adaptft-", dir=parent))
    except OSError as cause:
        raise OutputError(f"{option} {file} cannot be written: {_why(parent, cause)}.", fix=fix) from cause


def _why(folder: Path, cause: OSError) -> str:
    """``No such file or directory`` is what /proc says of a new file: it tells nobody anything."""
    return f"{folder} takes no new files ({cause.strerror or cause})"
