"""A checkpoint's files are read once by a process, and again as soon as anything about them is another."""

import os

import pytest
import xxhash

from adaptft.training import marks
from adaptft.training.marks import mark_of


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(marks, "SETTLED_NS", -(10**15))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    return file


@pytest.fixture
def reads(monkeypatch):
    """How often a file's content was looked at."""
    done = []
    fresh = xxhash.xxh3_128

    def counting(*content):
        done.append(content)
        return fresh(*content)

    monkeypatch.setattr(xxhash, "xxh3_128", counting)
    return done


def test_a_file_that_nobody_touched_is_read_once(path, reads):
    assert mark_of(path) == mark_of(path)
    assert len(reads) == 1
    assert mark_of(path.rename(path.with_name("moved"))).xxh3 == xxhash.xxh3_128_hexdigest(b"one")


def test_a_file_of_a_moment_ago_is_read_again(path, reads, monkeypatch):
    monkeypatch.setattr(marks, "SETTLED_NS", 2_000_000_000)
    assert mark_of(path) == mark_of(path)
    assert len(reads) == 2


def write(path):
    path.write_bytes(b"two")


def write_and_set_the_date_back(path):
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def put_another_in_its_place(path):
    other = path.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [write, write_and_set_the_date_back, put_another_in_its_place])
def test_a_change_of_equal_size_is_seen(path, change):
    assert mark_of(path).xxh3 == xxhash.xxh3_128_hexdigest(b"one")
    while path.stat().st_ctime_ns == _now(path):  # within one tick of the file system's clock dates are equal
        pass
    change(path)
    assert mark_of(path).xxh3 == xxhash.xxh3_128_hexdigest(b"two")


def _now(path):
    probe = path.with_name("probe")
    probe.write_bytes(b"")
    return probe.stat().st_ctime_ns
