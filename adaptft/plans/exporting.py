"""An export plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adaptft.facts import ModelShape
from adaptft.plans.common import Dtype
from adaptft.requests import ExportFormat, ExportRequest

Residence = Literal["twice", "once", "by_layer"]
"""How often host memory holds a model; by_layer: it stays on disk, and a layer visits memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an export may be from its source, over trained tokens of held-out rows."""

    loss_rise: float
    """Nats a token: its e-th power is how much the perplexity may grow."""
    divergence: float
    """Mean KL(source || export) of the next-token distributions in nats."""
    top1: float
    """Share of the tokens where both find the same one likeliest, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """A complete export plan."""

    request: ExportRequest
    model: ModelShape
    format: ExportFormat
    device: Literal["cuda", "cpu"]
    compute_dtype: Dtype
    """Type of the weights while they are merged or compressed."""
    residence: Residence
    saved_dtype: Dtype
    """Type of everything that is not compressed, on disk."""
    group_size: int | None
    symmetric: bool
    """False where each group of weights has a zero point beside its scale."""
    ignored_modules: tuple[str, ...]
    num_compressed_modules: int
    """Linear layers that the model's shape says will be compressed; the report counts what was."""
    num_calibration_rows: int
    max_length: int
    source_bytes: int
    predicted_bytes: int
    bits_per_weight: float
    """Of the compressed layers, their scales and zero points counted; 16 where nothing is compressed."""
    limits: Limits
    predicted_seconds: float | None
    """None for machines where no export was measured yet."""
    predicted_host_bytes: int
    """Peak of host memory, mapped files apart."""
    servable_on: str
    """Which GPUs can serve the format, in words."""
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
