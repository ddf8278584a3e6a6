"""Where a model runs when it is not trained (evaluation, export), and in which type."""

from __future__ import annotations

from typing import Literal

from adaptft.errors import MachineError
from adaptft.facts import Gpu, Machine
from adaptft.plans import Decision, Dtype
from adaptft.policy.architectures import capabilities

Device = Literal["cuda", "cpu"]


def host_free_bytes(machine: Machine) -> int:
    """Host memory that is available, and within the container's limit."""
    memory = machine.memory
    return min(memory.available_bytes, memory.limit_bytes or memory.available_bytes)


def choose_device(machine: Machine, wanted: Device | None) -> Decision[Device]:
    """The GPU where there is one; what the user asked for is obeyed.

    Raises:
        MachineError: a GPU was asked for and there is none.
    """
    if wanted == "cuda" and not machine.gpus:
        raise MachineError(
            "--device cuda was asked for, and this machine has no GPU that CUDA can use.",
            fix="Leave --device out to use the CPU; `adaptft probe` says what was found.",
        )
    if wanted is not None:
        return Decision(wanted, "as asked for", "user")
    if machine.gpus:
        return Decision("cuda", f"this machine has {machine.gpus[0].name}")
    return Decision("cpu", "this machine has no GPU that CUDA can use")


def inference_dtype(machine: Machine, device: Device) -> Decision[Dtype]:
    """The type of the weights and of the arithmetic on ``device``."""
    if device == "cpu":
        return Decision("fp32", "fp32 on the CPU: every CPU has it, and it is exact")
    if all(gpu_has_bf16(gpu) for gpu in machine.gpus):
        return Decision("bf16", "every GPU of this machine has bf16 (compute capability 8.0 and up)")
    return Decision("fp16", "a GPU of this machine lacks bf16 (compute capability below 8.0)")


def gpu_has_bf16(gpu: Gpu) -> bool:
    """True where bf16 matrix multiplication is a tensor-core instruction; an unknown GPU counts as one without."""
    return gpu.compute_capability is not None and capabilities(gpu.compute_capability).bf16
