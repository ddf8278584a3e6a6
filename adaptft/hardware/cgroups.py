"""A container's share of memory and CPU time, from cgroup version 1 or 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adaptft.hardware.text import UnreadableOutput

T = TypeVar("T")
# Version 1 writes "no limit" as the largest multiple of a page below 2**63.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The tightest limit of the group and its parents; None is no limit. ``cpus`` is in cores.

    ``used_bytes`` leaves out the page cache that the kernel would give back at once.
    """

    memory_bytes: int | None = None
    used_bytes: int | None = None
    cpus: float | None = None


def parse_memory_limit(text: str) -> int | None:
    """Read ``memory.max`` or ``memory.limit_in_bytes`` in bytes, None for no limit.

    Raises:
        UnreadableOutput: neither a number nor ``max``.
    """
    value = text.strip()
    if value == "max":
        return None
    if not value.isdecimal():
        raise UnreadableOutput(f"memory limit of the cgroup reads {value[:40]!r}")
    return int(value) if int(value) < _NO_LIMIT_BYTES else None


def parse_cpu_max(text: str) -> float | None:
    """Read version 2's ``cpu.max``, ``50000 100000`` (microseconds of a period) -> 0.5 cores.

    Raises:
        UnreadableOutput: another form.
    """
    match = re.fullmatch(r"(max|-1|\d+)(?:\s+(\d+))?", text.strip())
    if match is None or match.group(2) == "0":
        raise UnreadableOutput(f"cpu limit of the cgroup reads {text.strip()[:40]!r}")
    quota, period = match.groups()
    return None if quota in ("max", "-1") else int(quota) / int(period or 100_000)


def parse_groups(text: str) -> dict[str, str]:
    """Read /proc/self/cgroup: path by controller; version 2's single hierarchy is under the name ``""``."""
    groups: dict[str, str] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"\d+:([^:]*):(/.*)", line):
            groups.update(dict.fromkeys(match.group(1).split(","), match.group(2)))
    return groups


def read_limits(root: Path, notes: list[str]) -> Limits:
    """The limits of this process, with the file system's root at ``root``; what cannot be read goes to ``notes``."""
    groups = parse_groups(_read(root / "proc/self/cgroup") or "")
    mount = root / "sys/fs/cgroup"
    memory = list(_memory_limits(mount, groups, notes))
    tightest, used = min(memory, key=lambda limit: limit[0], default=(None, None))
    return Limits(memory_bytes=tightest, used_bytes=used, cpus=min(_cpu_limits(mount, groups, notes), default=None))


def _memory_limits(mount: Path, groups: dict[str, str], notes: list[str]) -> Iterator[tuple[int, int | None]]:
    one = (mount / "memory", groups.get("memory", "/"), "memory.limit_in_bytes", "memory.usage_in_bytes")
    two = (mount, groups.get("", "/"), "memory.max", "memory.current")
    for (top, group, limit_name, usage_name), cache in ((one, "total_inactive_file"), (two, "inactive_file")):
        for folder in _folders(top, group):
            if (limit := _accepted(parse_memory_limit, _read(folder / limit_name), notes)) is not None:
                yield limit, _used(_read(folder / usage_name), _read(folder / "memory.stat") or "", cache)


def _used(usage: str | None, statistics: str, cache_name: str) -> int | None:
    if usage is None or not usage.strip().isdecimal():
        return None
    cache = re.search(rf"^{cache_name} (\d+)$", statistics, flags=re.MULTILINE)
    return max(int(usage) - (int(cache.group(1)) if cache else 0), 0)


def _cpu_limits(mount: Path, groups: dict[str, str], notes: list[str]) -> Iterator[float]:
    texts = [_read(folder / "cpu.max") for folder in _folders(mount, groups.get("", "/"))]
    for name in ("cpu", "cpu,cpuacct"):
        for folder in _folders(mount / name, groups.get("cpu", "/")):
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            texts.append(f"{quota.strip()} {period.strip()}" if quota and period else None)
    for text in texts:
        if (cpus := _accepted(parse_cpu_max, text, notes)) is not None:
            yield cpus


def _accepted(parse: Callable[[str], T | None], text: str | None, notes: list[str]) -> T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except UnreadableOutput as reason:
        notes.append(f"{reason}: taken as no limit.")
        return None


def _folders(mount: Path, group: str) -> list[Path]:
    """The group's folder and its parents up to the mount point.

    A container often sees its own group mounted at the top, while /proc names the path on the host.
    """
    folder = mount / group.strip("/")
    return [folder, *(parent for parent in folder.parents if parent == mount or mount in parent.parents)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
