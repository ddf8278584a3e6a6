"""Which devices a run may use: the CPU, one GPU, or idle GPUs of one model."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.errors import MachineError, RequestError
from adaptft.facts import Gpu, Machine
from adaptft.policy.architectures import capabilities
from adaptft.requests import TrainRequest

OLDEST = (7, 0)
GPU_WISHES = ("num_gpus", "strategy", "sequence_parallel_size")
BUSY_SHARE = 0.2
"""A GPU of which more than this is taken by others is left alone while another is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """GPUs of one model that a run may use on each machine, freest first; a MIG slice is always alone."""

    gpus: tuple[Gpu, ...]
    left: str
    """Why the machine's other GPUs are not among them; "" where there are none."""


def choose_pool(machine: Machine, request: TrainRequest) -> Pool | str:
    """The GPUs, or why the CPU is used.

    Raises:
        MachineError: GPUs are asked for and no usable one is there.
        RequestError: more GPUs are asked for than can be used.
    """
    usable = [gpu for gpu in machine.gpus if (gpu.compute_capability or (0, 0)) >= OLDEST]
    if request.device == "cpu":
        return "asked for"
    if not usable:
        if request.device == "cuda" or any(getattr(request, name) for name in ("nnodes", *GPU_WISHES)):
            raise MachineError(
                f"A GPU is asked for: {_no_gpu(machine)}.",
                fix="Train on the CPU with --device cpu, or on a machine with an NVIDIA GPU.",
            )
        return _no_gpu(machine)
    idle = [gpu for gpu in usable if _busy_share(gpu) <= BUSY_SHARE] or [max(usable, key=_free)]
    best = max(idle, key=_free)
    peers = [best] if best.mig else sorted((gpu for gpu in idle if _same_kind(gpu, best)), key=_free, reverse=True)
    if (request.num_gpus or 1) > len(peers):
        raise _too_many(request.num_gpus or 1, peers)
    if best.mig and (request.nnodes or 1) > 1:
        raise _too_many(request.nnodes or 1, peers)
    return Pool(gpus=tuple(peers), left=_left_alone(machine, len(peers)))


def _too_many(wanted: int, peers: list[Gpu]) -> RequestError:
    best = peers[0]
    if best.mig:
        return RequestError(
            f"{wanted} GPUs are asked for, and a run cannot span MIG slices: they do not reach each other.",
            fix="Use --num_gpus 1, or ask for a machine with MIG switched off.",
        )
    there = f"{len(peers)} idle GPUs of one model are" if len(peers) > 1 else "1 idle GPU is"
    return RequestError(
        f"{wanted} GPUs are asked for, and {there} there ({best.name}).",
        fix=f"Use --num_gpus {len(peers)}, or free the others.",
    )


def _free(gpu: Gpu) -> int:
    return gpu.memory_free_bytes


def _busy_share(gpu: Gpu) -> float:
    return 1 - gpu.memory_free_bytes / gpu.memory_total_bytes


def _same_kind(gpu: Gpu, other: Gpu) -> bool:
    return gpu.name == other.name and gpu.memory_total_bytes == other.memory_total_bytes and not gpu.mig


def _left_alone(machine: Machine, equals: int) -> str:
    unlike = len(machine.gpus) - equals
    if not unlike:
        return ""
    if machine.gpus[0].mig:
        return f"{unlike} other slice{'s' * (unlike > 1)} left alone, since a run cannot span MIG slices"
    return f"{unlike} other GPU{'s' * (unlike > 1)} busy or of another model"


def _no_gpu(machine: Machine) -> str:
    if machine.gpus:
        names = ", ".join(f"{g.name} ({_generation(g)})" for g in machine.gpus)
        return f"no GPU that can be used (compute capability 7.0 or newer): {names}"
    if machine.unsupported:
        return "no NVIDIA GPU; " + ", ".join(f"{u.count} {u.name} not supported yet" for u in machine.unsupported)
    return "no GPU on this machine"


def _generation(gpu: Gpu) -> str:
    return capabilities(gpu.compute_capability).name if gpu.compute_capability else "unknown generation"
