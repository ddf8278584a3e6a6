"""What is decided. A plan is a value: printed, saved as plan.json, compared, and then obeyed.

Every part stands in a ``Decision`` with the reason and with who took it: ``policy`` or ``user``.
"""

from adaptft.plans.common import DTYPE_BYTES, DTYPE_NAMES, SHORT_DTYPES, Decision, Dtype, Source
from adaptft.plans.decisions import (
    FP8_ALIGNMENT,
    FUSED_MLP_LAYERS,
    MLP_TILE_TOKENS,
    SHARDED,
    SMALLEST_FUSED_RANK,
    WEIGHTS_ROUNDED_AT_A_TIME,
    AdapterKernels,
    Attention,
    Batch,
    Checkpointing,
    Compile,
    Decisions,
    LossKernel,
    Method,
    Optimizer,
    Placement,
    Precision,
    Schedule,
    fused_rank,
)
from adaptft.plans.exporting import ExportPlan, Limits, Residence
from adaptft.plans.serving import ServePlan
from adaptft.plans.training import CostEstimate, MemoryEstimate, Rejected, SpeedEstimate, TrainPlan

__all__ = [
    "DTYPE_BYTES",
    "DTYPE_NAMES",
    "FP8_ALIGNMENT",
    "FUSED_MLP_LAYERS",
    "MLP_TILE_TOKENS",
    "SHARDED",
    "SHORT_DTYPES",
    "SMALLEST_FUSED_RANK",
    "WEIGHTS_ROUNDED_AT_A_TIME",
    "AdapterKernels",
    "Attention",
    "Batch",
    "Checkpointing",
    "Compile",
    "CostEstimate",
    "Decision",
    "Decisions",
    "Dtype",
    "ExportPlan",
    "Limits",
    "LossKernel",
    "MemoryEstimate",
    "Method",
    "Optimizer",
    "Placement",
    "Precision",
    "Rejected",
    "Residence",
    "Schedule",
    "ServePlan",
    "Source",
    "SpeedEstimate",
    "TrainPlan",
    "fused_rank",
]
