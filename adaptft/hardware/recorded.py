"""Machines from files: what ``adaptft probe --json`` wrote, checked before a plan may trust it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adaptft.errors import MachineError
from adaptft.facts import Cpu, Gpu, Link, Machine
from adaptft.records import load_json, read_json, to_dict

_FIX = "Record the machine again with this version of adaptft: adaptft probe --json > machine.json"
_MOST_BYTES = 2**42  # 4 TiB on one GPU is not a GPU


def read_machine(path: Path) -> Machine:
    """The machine that ``path`` describes.

    Raises:
        MachineError: the file cannot be read, is of another version or form, or describes what cannot be.
    """
    machine = read_json(Machine, path, error=MachineError, what="recorded machine", fix=_FIX)
    unknown = next(_unknown_keys(load_json(path), to_dict(machine), ""), None)
    if unknown is not None:
        raise MachineError(f"{path} is of another version: this adaptft does not know {unknown}.", fix=_FIX)
    absurd = next(absurdities(machine), None)
    if absurd is not None:
        raise MachineError(f"{path} does not describe a machine: {absurd}.", fix=_FIX)
    return machine


def absurdities(machine: Machine) -> Iterator[str]:
    """Everything in ``machine`` that cannot be."""
    for position, gpu in enumerate(machine.gpus):
        if gpu.index != position:
            yield f"GPU number {position} has the index {gpu.index}"
        yield from (f"GPU {position} has {what}" for what in _gpu_absurdities(gpu))
    pairs = [(link.a, link.b) for link in machine.links]
    if len(set(pairs)) < len(pairs):
        yield "two links join the same pair of GPUs"
    yield from (what for link in machine.links for what in _link_absurdities(link, len(machine.gpus)))
    yield from _cpu_absurdities(machine.cpu)
    memory = machine.memory
    if memory.total_bytes <= 0 or not 0 <= memory.available_bytes <= memory.total_bytes:
        yield f"host memory of {memory.total_bytes} bytes with {memory.available_bytes} available"
    if memory.limit_bytes is not None and memory.limit_bytes <= 0:
        yield f"a memory limit of {memory.limit_bytes} bytes"
    if machine.disk and not 0 <= machine.disk.free_bytes <= machine.disk.total_bytes:
        yield f"a disk of {machine.disk.total_bytes} bytes with {machine.disk.free_bytes} free"


def _gpu_absurdities(gpu: Gpu) -> Iterator[str]:
    if not 0 < gpu.memory_total_bytes <= _MOST_BYTES:
        yield f"{gpu.memory_total_bytes} bytes of memory"
    if not 0 <= gpu.memory_free_bytes <= gpu.memory_total_bytes:
        yield f"{gpu.memory_free_bytes} of {gpu.memory_total_bytes} bytes free"
    if gpu.compute_capability and not (1 <= gpu.compute_capability[0] < 100 and 0 <= gpu.compute_capability[1] < 10):
        yield "the compute capability {}.{}".format(*gpu.compute_capability)
    for name in ("sm_count", "pcie_generation", "pcie_width", "power_limit_watts"):
        value = getattr(gpu, name)
        if value is not None and not value > 0:
            yield f"{name} {value}"


def _link_absurdities(link: Link, num_gpus: int) -> Iterator[str]:
    if not 0 <= link.a < link.b < num_gpus:
        yield f"a link joins the GPUs {link.a} and {link.b} of {num_gpus}"
    if (link.path == "NV") != (link.nvlink_width is not None) or (link.nvlink_width or 1) < 1:
        yield f"the link {link.a}-{link.b} is {link.path} with {link.nvlink_width} NVLinks"


def _cpu_absurdities(cpu: Cpu) -> Iterator[str]:
    if not 0 < cpu.usable_cores <= cpu.logical_cores:
        yield f"{cpu.usable_cores} of {cpu.logical_cores} CPU cores usable"
    if cpu.physical_cores is not None and cpu.physical_cores < 1:
        yield f"{cpu.physical_cores} physical CPU cores"


def _unknown_keys(data: Any, known: Any, where: str) -> Iterator[str]:
    if isinstance(data, dict) and isinstance(known, dict):
        for key, value in data.items():
            place = f"{where}.{key}" if where else key
            if key not in known:
                yield place
            else:
                yield from _unknown_keys(value, known[key], place)
    elif isinstance(data, list) and isinstance(known, list):
        for position, (value, known_value) in enumerate(zip(data, known, strict=False)):
            yield from _unknown_keys(value, known_value, f"{where}[{position}]")
