"""What ``adaptft bench`` measured, kept in the user's cache by the device that it was measured on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from adaptft.errors import MachineError
from adaptft.facts import Ceilings, Machine
from adaptft.hardware.measuring import Measurement
from adaptft.home import cache_folder
from adaptft.records import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One bench of one device."""

    date: str
    model: str
    """Whose shapes were multiplied."""
    ceilings: Ceilings
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Benches:
    by_device: dict[str, Bench] = field(default_factory=dict)


def bench_file() -> Path:
    """Where the measurements are; it need not be there."""
    return cache_folder("ceilings.json")


def device_key(machine: Machine, device: Literal["cuda", "cpu"]) -> str:
    """All that a measurement depends on: the device and how many, its power limit, and torch."""
    torch = machine.software.packages.get("torch")
    if device == "cpu" or not machine.gpus:
        return f"{machine.cpu.model_name}, {machine.cpu.usable_cores:g} cores, torch {torch}"
    first = machine.gpus[0]
    part = f" {first.mig.profile}" if first.mig else ""
    return f"{len(machine.gpus)} x {first.name}{part}, {first.power_limit_watts or 0:.0f} W, torch {torch}"


def keep(machine: Machine, bench: Bench) -> None:
    """Store ``bench``, in the place of an older one of this device.

    Raises:
        OSError: the cache cannot be written.
    """
    path = bench_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = _read().by_device | {device_key(machine, bench.ceilings.device): bench}
    write_json(path, _Benches(by_device=kept))


def with_ceilings(machine: Machine, device: Literal["cuda", "cpu"] | None) -> Machine:
    """``machine`` with what was measured on it, where something was; ``device`` None: its GPUs, if it has any."""
    bench = _read().by_device.get(device_key(machine, device or ("cuda" if machine.gpus else "cpu")))
    return machine if bench is None else replace(machine, ceilings=bench.ceilings)


def _read() -> _Benches:
    """Raises ``MachineError`` where the file is there and cannot be understood."""
    path = bench_file()
    if not path.exists():
        return _Benches()
    return read_json(
        _Benches,
        path,
        error=MachineError,
        what="record of adaptft bench",
        fix="Delete it, and run adaptft bench again.",
    )
