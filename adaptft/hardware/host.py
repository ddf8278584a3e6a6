"""CPU, memory and disk of the host, with the container's limits counted."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from adaptft.facts import Cpu, Disk, HostMemory
from adaptft.hardware.cgroups import Limits
from adaptft.hardware.cpu import CpuText, parse_cpuinfo, parse_lscpu
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.tools import ToolError, run_tool
from adaptft.units import format_bytes


def read_cpu(limits: Limits, notes: list[str]) -> Cpu:
    """The processor from lscpu, else /proc/cpuinfo, else what Python knows."""
    text = _cpu_text(notes)
    logical = text.logical_cores or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    return Cpu(
        model_name=text.model_name or platform.processor() or "unknown",
        architecture=text.architecture or platform.machine(),
        logical_cores=logical,
        physical_cores=text.physical_cores or psutil.cpu_count(logical=False),
        usable_cores=usable_cores(logical, allowed, limits.cpus),
        numa_nodes=text.numa_nodes,
        flags=text.flags,
    )


def usable_cores(logical: int, allowed: int, quota: float | None) -> float:
    """Cores that this process may keep busy: the least of what is there, its affinity and its quota."""
    return min(float(logical), float(allowed), logical if quota is None else quota)


def read_memory(limits: Limits, notes: list[str]) -> HostMemory:
    """Host memory; ``available_bytes`` is what is left under the limit where that is less."""
    memory = psutil.virtual_memory()
    return container_memory(memory.total, memory.available, limits, notes)


def container_memory(total: int, available: int, limits: Limits, notes: list[str]) -> HostMemory:
    """``total`` and ``available`` of the kernel, with the container's limit."""
    limit = limits.memory_bytes
    if limit is not None:
        available = min(available, max(limit - (limits.used_bytes or 0), 0))
        if limit > total:
            notes.append(
                f"The container may use {format_bytes(limit)} where the kernel shows {format_bytes(total)}: "
                "the memory of this virtual machine may grow as it is used."
            )
    return HostMemory(total_bytes=total, available_bytes=available, limit_bytes=limit)


def read_disk(path: Path, notes: list[str]) -> Disk | None:
    """The file system that holds ``path``, or would hold it: the nearest parent that exists."""
    path = path.absolute()
    existing = next((p for p in (path, *path.parents) if p.exists()), path)
    try:
        usage = shutil.disk_usage(existing)
    except OSError as cause:
        notes.append(f"The disk of {path} cannot be read: {cause.strerror}.")
        return None
    return Disk(path=str(existing), total_bytes=usage.total, free_bytes=usage.free)


def _cpu_text(notes: list[str]) -> CpuText:
    sources: tuple[Callable[[], CpuText], ...] = (
        lambda: parse_lscpu(run_tool("lscpu", timeout_seconds=10)),
        lambda: parse_cpuinfo(_read_cpuinfo()),
    )
    for read in sources:
        try:
            return read()
        except (ToolError, UnreadableOutput, OSError) as reason:
            notes.append(f"The CPU is read from another source: {reason}.")
    return CpuText()


def _read_cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
