"""A training plan: what is decided, what is predicted, and what was rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans.decisions import Decisions
from adaptft.requests import TrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Peak bytes on one device by part. ``peak_bytes`` is allocated memory at the worst moment."""

    weights_bytes: int
    adapters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    workspace_bytes: int
    framework_bytes: int
    capacity_bytes: int
    moment: Literal["forward", "backward", "optimizer", "load"] = "backward"
    """The worst moment; parts that do not live then are zero."""

    @property
    def peak_bytes(self) -> int:
        """Allocated at the worst moment: everything but the framework's own share."""
        states = self.weights_bytes + self.adapters_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.workspace_bytes

    @property
    def needed_bytes(self) -> int:
        """What the device must have free: the peak, and CUDA's context and the allocator's slack."""
        return self.peak_bytes + self.framework_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Predicted speed; ``mfu`` counts the model's FLOPs against the dense peak of the compute type."""

    step_seconds: float
    tokens_per_second: float
    mfu: float | None
    total_seconds: float
    waiting_seconds: float = 0.0
    """Of a step: collectives that arithmetic does not hide."""
    communication_seconds: float = 0.0
    """Of a step: all collectives, hidden or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Money; only where a price is known."""

    usd_per_gpu_hour: float
    total_usd: float
    price_source: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An option that was weighed and not taken; ``is_way_out`` marks a leaner wish that would fit."""

    option: str
    reason: str
    is_way_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A complete training plan: inputs, decisions, predictions."""

    machine: Machine
    model: ModelShape
    dataset: DatasetShape
    request: TrainRequest
    decisions: Decisions
    memory: MemoryEstimate
    speed: SpeedEstimate | None = None
    cost: CostEstimate | None = None
    rejected: tuple[Rejected, ...] = ()
    warnings: tuple[str, ...] = ()
    fits: bool = True

    @property
    def uses_gpu(self) -> bool:
        """True where it trains on GPUs; one for several ranks of a machine without any runs them on its CPU."""
        return self.decisions.placement.value.strategy != "cpu" and bool(self.machine.gpus)
