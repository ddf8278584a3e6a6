"""How long an export takes on a CPU, from what was measured on one.

Two idle cores of an AMD EPYC 7003 (AVX2, fp32), SmolLM2-135M with 106 M weights in its layers, 2026-11-30: FP8 4 s,
GPTQ of 32 rows x 256 tokens 94 s, AWQ of 16 x 256 tokens 276 s with 20 scales tried (on a CPU 10 are), 1,024 tokens
through an FP8 export 5 s.
"""

from __future__ import annotations

from adaptft.facts import LinearShape, Machine
from adaptft.plans import Decision
from adaptft.policy.devices import Device
from adaptft.policy.format_table import CHECK_TOKENS
from adaptft.requests import ExportFormat, ExportRequest

_START_SECONDS = 15.0
"""Imports, the tokenizer, reading rows."""
_PER_WEIGHT = 7.5e-8
"""Core-seconds: load, round, save, load back."""
_PER_WEIGHT_AND_TOKEN = 1.3e-10
"""Core-seconds: one weight applied to one token of the check."""
_CALIBRATION: dict[ExportFormat, float] = {"gptq": 2.2e-10, "awq": 6.4e-10, "fp8": _PER_WEIGHT_AND_TOKEN}
"""Core-seconds a weight and calibration token."""


def export_seconds(
    request: ExportRequest, linears: tuple[LinearShape, ...], machine: Machine, device: Device, tokens: int
) -> Decision[float | None]:
    """Predicted seconds; None on a GPU.

    Args:
        tokens: of calibration, at most.
    """
    if device == "cuda":
        return Decision(None, "not predicted: no export was timed on such a GPU yet")
    weights = sum(linear.num_weights for linear in linears)
    passes = 3 if request.adapters else 2  # source, merged, export
    each = _PER_WEIGHT + tokens * _CALIBRATION.get(request.format, 0.0)
    each += passes * CHECK_TOKENS["cpu"] * _PER_WEIGHT_AND_TOKEN
    cores = max(machine.cpu.usable_cores, 0.5)
    return Decision(_START_SECONDS + weights * each / cores, f"on {cores:g} idle cores; a busy machine takes longer")
