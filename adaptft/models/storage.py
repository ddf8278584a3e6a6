"""Folders of adaptft's cache appear whole or not at all."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptft.errors import OutputError
from adaptft.units import format_bytes


@contextmanager
def whole_folder(target: Path, *, needed_bytes: int) -> Iterator[Path]:
    """A temporary folder that becomes ``target`` when the block ends without an error, and vanishes otherwise.

    Where another process made ``target`` meanwhile, its result stays and this one is dropped.

    Raises:
        OutputError: the disk has less than ``needed_bytes`` free, or the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_free(target.parent, needed_bytes)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as cause:
        raise _unwritable(target, cause) from cause
    try:
        yield partial
        partial.chmod(0o755)
        partial.rename(target)
    except OSError as cause:
        if not target.is_dir():
            raise _unwritable(target, cause) from cause
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_free(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise OutputError(
            f"The disk of {folder} has {format_bytes(free)} free; the model needs {format_bytes(needed_bytes)}.",
            fix="Free some space, or set ADAPTFT_HOME to a folder on a larger disk.",
        )


def _unwritable(target: Path, cause: OSError) -> OutputError:
    problem = "The disk is full" if cause.errno == errno.ENOSPC else f"Cannot write ({cause.strerror or cause})"
    return OutputError(f"{problem}: {target}.", fix="Set ADAPTFT_HOME to a folder with space that you may write to.")
