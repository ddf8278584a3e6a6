"""Which device, and in which arrangement: CPU, one GPU, or one replica on each of several."""

from __future__ import annotations

from collections.abc import Callable

from adaptft.errors import MachineError, RequestError
from adaptft.facts import Gpu, Machine
from adaptft.plans import Decision, Placement, Source
from adaptft.policy.architectures import capabilities
from adaptft.requests import TrainRequest
from adaptft.units import format_bytes

OLDEST = (7, 0)
BUSY_SHARE = 0.2
"""A GPU of which more than this is taken by others is left alone while another is free."""


def place(
    machine: Machine, request: TrainRequest, can_share: Callable[[int], bool] = lambda ranks: True
) -> Decision[Placement]:
    """The CPU, the freest GPU, or all idle GPUs of the same model with a replica each.

    ``can_share`` says whether so many GPUs can divide a step among themselves. A MIG slice is always alone.

    Raises:
        MachineError: cuda is asked for and no usable GPU is there.
        RequestError: more GPUs are asked for than can be used.
    """
    usable = [gpu for gpu in machine.gpus if (gpu.compute_capability or (0, 0)) >= OLDEST]
    if request.device == "cpu":
        return Decision(Placement(strategy="cpu", nodes=request.nnodes or 1), "asked for", "user")
    if not usable:
        if request.device == "cuda" or request.num_gpus:
            raise MachineError(
                f"A GPU is asked for: {_no_gpu(machine)}.",
                fix="Train on the CPU with --device cpu, or on a machine with an NVIDIA GPU.",
            )
        return Decision(Placement(strategy="cpu"), _no_gpu(machine))
    idle = [gpu for gpu in usable if _busy_share(gpu) <= BUSY_SHARE] or [max(usable, key=_free)]
    best = max(idle, key=_free)
    peers = [best] if best.mig else sorted((gpu for gpu in idle if _same_kind(gpu, best)), key=_free, reverse=True)
    shares = [ranks for ranks in range(1, len(peers) + 1) if can_share(ranks)]
    wanted = request.num_gpus if request.num_gpus is not None else max(shares, default=1)
    if wanted > len(peers):
        raise _too_many(wanted, peers)
    source: Source = "user" if request.num_gpus is not None or request.device else "policy"
    left = _left_alone(machine, wanted, len(peers), asked=request.num_gpus is not None)
    if wanted == 1:
        name = f"MIG slice {best.mig.profile}" if best.mig else best.name
        reason = f"{name}, {format_bytes(best.memory_free_bytes)} free{left}"
        return Decision(Placement(strategy="single", gpu_indices=(best.index,), device_map={"": 0}), reason, source)
    indices = tuple(sorted(gpu.index for gpu in peers[:wanted]))
    reason = f"a replica on each of {wanted} {best.name}; only gradients travel{left}"
    return Decision(Placement(strategy="ddp", gpu_indices=indices), reason, source)


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


def _left_alone(machine: Machine, used: int, equals: int, *, asked: bool) -> str:
    """Why the other GPUs are not used, where there are others."""
    if asked:
        return f"; {used} asked for"
    unlike, idle = len(machine.gpus) - equals, equals - used
    parts = [f"; a step does not divide among {equals} GPUs"] if idle else []
    if unlike and machine.gpus[0].mig:
        parts.append(f"; {unlike} other slice{'s' * (unlike > 1)} left alone, since a run cannot span MIG slices")
    elif unlike:
        parts.append(f"; {unlike} other GPU{'s' * (unlike > 1)} busy or of another model")
    return "".join(parts)


def _no_gpu(machine: Machine) -> str:
    if machine.gpus:
        names = ", ".join(f"{g.name} ({_generation(g)})" for g in machine.gpus)
        return f"no GPU that can be used (compute capability 7.0 or newer): {names}"
    if machine.unsupported:
        return "no NVIDIA GPU; " + ", ".join(f"{u.count} {u.name} not supported yet" for u in machine.unsupported)
    return "no GPU on this machine"


def _generation(gpu: Gpu) -> str:
    return capabilities(gpu.compute_capability).name if gpu.compute_capability else "unknown generation"
