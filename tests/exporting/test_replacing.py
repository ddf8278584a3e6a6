"""An export folder is there whole or not at all, whatever ends the work."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from adaptft.errors import OutputError
from adaptft.exporting.replacing import replacing


def write_half(folder: Path, happens: Callable[[], None]) -> None:
    with replacing(folder) as partial:
        (partial / "half").touch()
        happens()


def test_the_new_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old").touch()
    with replacing(folder) as partial:
        (partial / "new").touch()
        assert (folder / "old").exists(), "the old one stays until the new one is whole"
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_somebody_stops_it(number: signal.Signals, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "out", lambda: os.kill(os.getpid(), number))
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_is_said_in_words_and_leaves_nothing(tmp_path: Path) -> None:
    def fill_up() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match="is full") as refusal:
        write_half(tmp_path / "out", fill_up)
    assert "--output_dir" in refusal.value.fix
    assert list(tmp_path.iterdir()) == []
