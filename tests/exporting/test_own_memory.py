"""The process's own memory is watched; files that are mapped into it are not counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adaptft.exporting.own_memory import own_bytes

PROBE = """
import mmap
from pathlib import Path
from adaptft.exporting.own_memory import own_bytes, watched
MIB = 2**20


def probe(path):
    file = Path(path)
    file.write_bytes(b"1" * (64 * MIB))
    before = own_bytes() or 0
    with watched() as mapped, file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert sum(view[::4096]) > 0
        mapped.look()
    middle = own_bytes() or 0
    with watched() as filled:
        block = bytearray(b"1" * (64 * MIB))
        filled.look()
        del block
    assert (mapped.num_bytes or 0) - before < 32 * MIB
    assert (filled.num_bytes or 0) - middle > 60 * MIB
"""


@pytest.mark.skipif(own_bytes() is None, reason="needs /proc")
def test_memory_that_is_given_back_is_remembered_and_mapped_files_are_not_counted(tmp_path: Path) -> None:
    """In a process of its own: what other tests leave behind is given back at any time."""
    done = subprocess.run([sys.executable, "-c", f"{PROBE}\nprobe({str(tmp_path / 'weights')!r})"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
