"""Which device, and in which arrangement: CPU, one GPU, or one replica on each of several."""

from __future__ import annotations

from adaptft.errors import MachineError, RequestError
from adaptft.facts import Gpu, Machine
from adaptft.plans import Decision, Placement, Source
from adaptft.policy.architectures import capabilities
from adaptft.requests import TrainRequest
from adaptft.units import format_bytes

OLDEST = (7, 0)
BUSY_SHARE = 0.2
"""A GPU of which more than this is taken by others is left alone while another is free."""


def place(machine: Machine, request: TrainRequest) -> Decision[Placement]:
    """The CPU, the freest GPU, or all idle GPUs of the same model with a replica each.

    Raises:
        MachineError: cuda is asked for and no usable GPU is there.
        RequestError: more GPUs are asked for than can be used.
    """
    usable = [gpu for gpu in machine.gpus if (gpu.compute_capability or (0, 0)) >= OLDEST]
    if request.device == "cpu":
        return Decision(Placement(strategy="cpu"), "asked for", "user")
    if not usable:
        if request.device == "cuda" or request.num_gpus:
            raise MachineError(
                _no_gpu(machine), fix="Train on the CPU with --device cpu, or on a machine with an NVIDIA GPU."
            )
        return Decision(Placement(strategy="cpu"), _no_gpu(machine))
    idle = [gpu for gpu in usable if _busy_share(gpu) <= BUSY_SHARE] or [max(usable, key=_free)]
    best = max(idle, key=_free)
    peers = sorted((gpu for gpu in idle if _same_kind(gpu, best)), key=lambda gpu: gpu.index)
    wanted = request.num_gpus if request.num_gpus is not None else len(peers)
    if wanted > len(peers):
        raise RequestError(
            f"{wanted} GPUs are asked for, and {len(peers)} idle GPUs of one model ({best.name}) are there.",
            fix=f"Use --num_gpus {len(peers)}, or free the others.",
        )
    source: Source = "user" if request.num_gpus is not None else "policy"
    if wanted == 1:
        reason = f"{best.name}, {format_bytes(best.memory_free_bytes)} free" + _left_alone(machine, 1)
        return Decision(Placement(strategy="single", gpu_indices=(best.index,), device_map={"": 0}), reason, source)
    indices = tuple(gpu.index for gpu in peers[:wanted])
    reason = f"a replica on each of {wanted} {best.name}; only gradients travel" + _left_alone(machine, wanted)
    return Decision(Placement(strategy="ddp", gpu_indices=indices), reason, source)


def _free(gpu: Gpu) -> int:
    return gpu.memory_free_bytes


def _busy_share(gpu: Gpu) -> float:
    return 1 - gpu.memory_free_bytes / gpu.memory_total_bytes


def _same_kind(gpu: Gpu, other: Gpu) -> bool:
    return gpu.name == other.name and gpu.memory_total_bytes == other.memory_total_bytes


def _left_alone(machine: Machine, used: int) -> str:
    rest = len(machine.gpus) - used
    return f"; {rest} other GPU{'s' * (rest > 1)} busy, older or not needed" if rest else ""


def _no_gpu(machine: Machine) -> str:
    if machine.gpus:
        names = ", ".join(f"{g.name} ({_generation(g)})" for g in machine.gpus)
        return f"no GPU that can be used (compute capability 7.0 or newer): {names}"
    if machine.unsupported:
        return "no NVIDIA GPU; " + ", ".join(f"{u.count} {u.name} not supported yet" for u in machine.unsupported)
    return "no GPU on this machine"


def _generation(gpu: Gpu) -> str:
    return capabilities(gpu.compute_capability).name if gpu.compute_capability else "unknown generation"
