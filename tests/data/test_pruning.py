"""The cache of rows: bounded on its disk, oldest first; packs follow from length and are read where they lie."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from adaptft import data
from adaptft.data import cache, pruning
from adaptft.data.tables import PACKS, table_writer

DAY = 24 * 3600


def entry(root: Path, name: str, days: float) -> Path:
    folder = root / "data" / name
    folder.mkdir(parents=True)
    (folder / "rows.arrow").write_bytes(bytes(1000))
    os.utime(folder, (time.time() - days * DAY,) * 2)
    return folder


def limit(monkeypatch, root: Path, num_bytes: int) -> None:
    import shutil

    monkeypatch.setattr(pruning, "SHARE_OF_DISK", num_bytes / shutil.disk_usage(root).total)


def test_what_was_used_longest_ago_goes_first_and_what_is_fresh_stays(tmp_path, monkeypatch):
    names = {"a": 9, "b": 8, "c": 0.5, "d": 7}
    folders = {name: entry(tmp_path, name, days) for name, days in names.items()}
    limit(monkeypatch, tmp_path, 2500)
    pruning.prune(tmp_path)
    assert [name for name, folder in folders.items() if folder.exists()] == ["c", "d"]
    limit(monkeypatch, tmp_path, 0)
    pruning.prune(tmp_path)
    assert [name for name, folder in folders.items() if folder.exists()] == ["c"]


def test_within_the_limit_only_what_a_killed_process_left_goes(tmp_path):
    whole, left, growing = entry(tmp_path, "a", 9), entry(tmp_path, "b.x1y2", 2), entry(tmp_path, "c.x1y2", 0.1)
    pruning.prune(tmp_path)
    assert (whole.exists(), left.exists(), growing.exists()) == (True, False, True)


def test_reading_rows_marks_them_as_used(read, own_cache):
    read([{"text": "abc"}])
    (path,) = own_cache.rglob(cache.ROWS)
    os.utime(path.parent, (1, 1))
    read([{"text": "abc"}])
    assert time.time() - path.parent.stat().st_mtime < 60


def test_another_max_length_or_strategy_makes_other_packs_and_the_same_ones_are_read_again(read, own_cache):
    rows = read([{"text": "x" * size} for size in (10, 20, 30)]).tokenized.rows

    def packs(max_length: int, strategy: str = "split") -> int:
        fitted, _ = data.fit_rows(rows, max_length, strategy)
        data.pack(fitted, max_length, seed=1)
        return len(list(own_cache.glob("rows/packed/*")))

    assert [packs(25), packs(25), packs(26), packs(25, "right"), packs(25)] == [1, 1, 2, 3, 3]


def test_training_reads_packs_where_they_lie_without_copying_them_into_memory(tmp_path):
    """40 MB of packs through the trainer's own reader: the memory that is no page of a file stays as it is."""
    from adaptft.training.batches import Rows

    path, num_packs, length = tmp_path / "rows.arrow", 1600, 2048
    with table_writer(path, PACKS) as writer:
        for _ in range(num_packs // 100):
            columns = {name: np.zeros(100 * length, np.int32) for name in PACKS}
            writer.write(np.full(100, length, np.int32), columns)
    rows = Rows(cache.open_rows(path, "key"))
    sizes = [len(rows[index]["input_ids"]) for index in range(100)]
    before = private_bytes()
    sizes = [len(rows[index]["input_ids"]) for index in range(num_packs)]
    assert sizes == [length] * num_packs
    assert path.stat().st_size > 3 * 4 * num_packs * length
    assert private_bytes() - before < 8e6


def private_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024
