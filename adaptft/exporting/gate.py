"""The gate: what an export is held against before it may take its place. Numbers in, verdict out."""

from __future__ import annotations

import math
from dataclasses import replace

from adaptft.errors import ExportError
from adaptft.exporting.checking import FileCount
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS, MERGE_DIVERGENCE
from adaptft.reports import AnswerPair, Fidelity, GateLine, GateReport, MergeReport, perplexity
from adaptft.units import format_number

_BITS_SLACK = 1.02
"""Bits a weight may be over the plan's: tensors of a few bytes, such as shapes."""


def judge(
    plan: ExportPlan,
    found: FileCount,
    fidelity: Fidelity,
    answers: tuple[AnswerPair, ...],
    merge: MergeReport | None,
    *,
    rows: str,
    device: str,
) -> GateReport:
    """Hold what was measured against the plan's limits.

    Raises:
        ExportError: nothing was compressed, or the export gives no numbers; ``--accept-loss`` cannot keep that.
    """
    _check_sane(plan, found, fidelity)
    lines = list(_fidelity_lines(plan, fidelity))
    if merge is not None:
        lines.append(_line("KL of merged and adapter", merge.parity.divergence, "at most", MERGE_DIVERGENCE))
    if plan.num_compressed_modules:
        count, expected = len(found.compressed_modules), plan.num_compressed_modules
        lines.append(_line("compressed layers", count, "exactly", expected))
        lines.append(_line("bits a weight", found.bits_per_weight, "at most", plan.bits_per_weight * _BITS_SLACK))
    gate = GateReport(fidelity=fidelity, lines=tuple(lines), answers=answers, rows=rows, device=device)
    return replace(gate, was_accepted=bool(gate.failures) and plan.request.accept_loss)


def check(plan: ExportPlan, gate: GateReport) -> tuple[str, ...]:
    """Notes on an export that is kept all the same.

    Raises:
        ExportError: it is over a limit, and ``--accept-loss`` was not given.
    """
    if not gate.failures:
        return ()
    said = "; ".join(describe(line) for line in gate.lines if not line.passes)
    if gate.was_accepted:
        return (f"Kept by --accept-loss, over the limits of {plan.format}: {said}.",)
    rows = f", or more calibration rows (--quant_n_samples {4 * plan.num_calibration_rows})"
    raise ExportError(
        f"This {plan.format} export is too far from its source, so it was not kept: {said}.",
        fix=f"Use --format {FORMATS[plan.format].safer}{rows if plan.num_calibration_rows else ''}; "
        "--accept-loss keeps it, marked.",
    )


def describe(line: GateLine) -> str:
    """``KL 0.31 (at most 0.1)``."""
    return f"{line.measure} {format_number(line.export)} ({line.rule} {format_number(line.limit)})"


def _fidelity_lines(plan: ExportPlan, fidelity: Fidelity) -> tuple[GateLine, ...]:
    limits = plan.limits
    highest = perplexity(fidelity.source_loss + limits.loss_rise)
    return (
        _line("perplexity", fidelity.perplexity, "at most", highest, source=fidelity.source_perplexity),
        _line("KL", fidelity.divergence, "at most", limits.divergence),
        _line("same top token", fidelity.top1, "at least", limits.top1),
    )


def _line(measure: str, export: float, rule: str, limit: float, *, source: float | None = None) -> GateLine:
    return GateLine(measure=measure, source=source, export=export, rule=rule, limit=limit)  # type: ignore[arg-type]


def _check_sane(plan: ExportPlan, found: FileCount, fidelity: Fidelity) -> None:
    if plan.num_compressed_modules and not found.compressed_modules:
        raise ExportError(
            "Nothing was compressed: llm-compressor found no linear layer of this architecture.",
            fix="Use --format merged; vLLM compresses it to FP8 as it loads (--quantization fp8).",
        )
    if not math.isfinite(fidelity.source_loss):
        raise ExportError(
            f"The source itself gives no numbers: its loss is {fidelity.source_loss}, before anything was changed.",
            fix="Export an earlier checkpoint: the training that wrote this one broke its weights.",
        )
    if not math.isfinite(fidelity.loss) or not math.isfinite(fidelity.divergence):
        raise ExportError(
            f"The export loads back, but its loss is {fidelity.loss}: the weights overflow in this format.",
            fix="Use --format merged, or another format: fp8 and awq are the most forgiving.",
        )
