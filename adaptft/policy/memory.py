"""Peak memory of a training step on one device.

The peak is the largest of several moments, not a sum over all parts: loading, the end of the forward pass (all saved
activations and a chunk of logits), the start of the backward pass (all saved activations, the last layer's
gradients), its end (all gradients), and the optimizer step. ``states`` and ``activations`` have the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from adaptft.plans import DTYPE_BYTES, WEIGHTS_ROUNDED_AT_A_TIME, MemoryEstimate
from adaptft.policy.activations import backward_transients, logits_bytes, saved_activations
from adaptft.policy.states import States, states
from adaptft.policy.storage import gathered, stored_bytes
from adaptft.policy.workload import Workload
from adaptft.units import GiB, MiB

MATMUL_WORKSPACE = 96 * MiB
"""What cuBLAS sets aside on Hopper, as measured; older cards take less."""
OPTIMIZER_WORKSPACE = 64 * MiB
"""The fused kernel needs none; states kept in 8 bit are updated block by block."""
CUDA_CONTEXT_BYTES = 600 * MiB
CPU_FRAMEWORK_BYTES = int(0.6 * GiB)
NCCL_BYTES = 512 * MiB
"""Buffers of a communicator: 0.2 to 1 GiB as published, not measured here."""
ALLOCATOR_SLACK = 0.04
"""Reserved over allocated, with expandable segments: 1.03 measured where shapes do not change."""
FREE_MARGIN = 0.03
"""Share of the free memory that a plan leaves untouched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What lives beside weights at rest, adapters and optimizer states."""

    name: Literal["forward", "backward", "optimizer"]
    weights: int = 0
    gradients: int
    activations: int = 0
    logits: int = 0
    workspace: int

    @property
    def size(self) -> int:
        return self.weights + self.gradients + self.activations + self.logits + self.workspace


def estimate_memory(work: Workload, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    """The estimate at the worst moment, loading included; ``capacity_bytes`` is the device's free memory."""
    step = step_memory(work, capacity_bytes, on_gpu=on_gpu)
    loading = _loading_bytes(work)
    return step if loading <= step.peak_bytes else _while_loading(work, loading, capacity_bytes, on_gpu=on_gpu)


def step_memory(work: Workload, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    """The estimate at the worst moment of a step."""
    held = states(work)
    worst = max(_moments(work, held), key=lambda moment: moment.size)
    peak = held.weights + held.adapters + held.optimizer + worst.size
    return MemoryEstimate(
        weights_bytes=held.weights + worst.weights,
        adapters_bytes=held.adapters,
        gradients_bytes=worst.gradients,
        optimizer_bytes=held.optimizer,
        activations_bytes=worst.activations,
        logits_bytes=worst.logits,
        workspace_bytes=worst.workspace,
        framework_bytes=_framework_bytes(work, peak) if on_gpu else CPU_FRAMEWORK_BYTES,
        capacity_bytes=capacity_bytes,
        moment=worst.name,
    )


def _moments(work: Workload, held: States) -> Iterator[_Moment]:
    activations = saved_activations(work)
    yield _Moment(
        name="forward",
        weights=held.passing_weights,
        gradients=held.waiting_gradients,
        activations=activations,
        logits=logits_bytes(work),
        workspace=MATMUL_WORKSPACE,
    )
    yield _Moment(
        name="backward",
        weights=held.passing_weights,
        gradients=held.waiting_gradients + held.passing_gradients,
        activations=activations,
        workspace=backward_transients(work) + MATMUL_WORKSPACE,
    )
    gathered, whole = held.ending
    yield _Moment(name="backward", weights=gathered, gradients=whole, workspace=MATMUL_WORKSPACE)
    yield _Moment(name="optimizer", gradients=held.gradients, workspace=OPTIMIZER_WORKSPACE)


def _loading_bytes(work: Workload) -> int:
    """A base in FP8 sees some tokens in 16 bit and is converted; NF4 is packed while read.

    It comes to the GPU layer by layer, beside those that are converted already, or whole. What is to be sharded goes
    back to the host, layer by layer.
    """
    if work.method.base_storage != "fp8":
        return 0
    kernels, size = work.decisions.adapters.value, DTYPE_BYTES[work.precision.weights]
    rows = [row for row in work.model.linears if row.kind != "head"]
    widest = max(row.num_weights // row.count for row in rows)
    longest = max(max(row.in_features, row.out_features) for row in rows)
    # gate, up and their product in 16 bit, one in FP32 twice
    calibrating = kernels.calibration_tokens * longest * (3 * 2 + 2 * 4)
    converting = 6 * min(widest, WEIGHTS_ROUNDED_AT_A_TIME) if kernels.calibration_tokens else 0
    layer = size * sum(row.num_weights for row in rows) // work.model.num_layers
    if work.is_sharded:
        ends = gathered(work)
        return ends.embedding + ends.head + layer + max(calibrating, converting)
    if kernels.by_layer:
        return stored_bytes(work) + layer + max(calibrating, converting)
    return int(work.model.num_parameters * size) + max(calibrating, size * widest + converting)


def _while_loading(work: Workload, loading: int, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    return MemoryEstimate(
        weights_bytes=loading,
        adapters_bytes=0,
        gradients_bytes=0,
        optimizer_bytes=0,
        activations_bytes=0,
        logits_bytes=0,
        workspace_bytes=0,
        framework_bytes=_framework_bytes(work, loading) if on_gpu else CPU_FRAMEWORK_BYTES,
        capacity_bytes=capacity_bytes,
        moment="load",
    )


def _framework_bytes(work: Workload, peak_bytes: int) -> int:
    """CUDA's context, what the allocator holds unused, and the buffers of ranks that exchange data."""
    buffers = NCCL_BYTES if work.decisions.placement.value.num_gpus > 1 else 0
    return CUDA_CONTEXT_BYTES + int(peak_bytes * ALLOCATOR_SLACK) + buffers


def fits(memory: MemoryEstimate) -> bool:
    """True where the need stays below the free memory less the margin."""
    return memory.needed_bytes <= memory.capacity_bytes * (1 - FREE_MARGIN)
