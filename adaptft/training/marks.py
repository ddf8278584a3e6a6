"""Size and hash of a file, by which a checkpoint's seal knows it again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import xxhash

SETTLED_NS = 2_000_000_000
"""A file changed later than this ago may change again without another date: some file systems count in two seconds."""
_CHUNK = 1 << 24
_State = tuple[int, int, int, int, int]
_read: dict[_State, FileMark] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """Size and hash (XXH3, 128 bits, hexadecimal) of one file."""

    num_bytes: int
    xxh3: str


def mark_of(path: Path) -> FileMark:
    """Size and hash of ``path`` as they are now; what this process has read and nobody touched since is not read again.

    A run looks at its checkpoint before it plans and once more before it loads it.
    """
    with path.open("rb") as stream:
        state, is_settled = _state(stream.fileno())
        if state in _read:
            return _read[state]
        content, size = xxhash.xxh3_128(), 0
        while chunk := stream.read(_CHUNK):
            content.update(chunk)
            size += len(chunk)
    mark = FileMark(num_bytes=size, xxh3=content.hexdigest())
    if is_settled:
        _read[state] = mark
    return mark


def _state(descriptor: int) -> tuple[_State, bool]:
    """What changes whenever a file does (nobody can set the last of them), and whether it can be relied on."""
    found = os.fstat(descriptor)
    state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return state, time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) > SETTLED_NS
