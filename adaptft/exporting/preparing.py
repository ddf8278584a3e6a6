"""From a source to the plain 16- or 32-bit model that is saved or compressed, with proof that merging lost nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaptft.errors import ExportError
from adaptft.exporting.layers import load_on_disk, unread
from adaptft.exporting.merging import merge, torch_dtype
from adaptft.exporting.reference import Reference, parity, refer
from adaptft.exporting.rows import ExportRows
from adaptft.exporting.sources import ExportSource
from adaptft.exporting.trained_scales import Peaks, row_peaks
from adaptft.models.adapting import put_on
from adaptft.models.loading import load_weights
from adaptft.models.planned import nf4_config
from adaptft.plans import ExportPlan, TrainPlan
from adaptft.reports import Fidelity, MergeReport

Progress = Callable[[str], None]
BaseName = Literal["original", "dequantised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The model to save or compress, on the CPU, and what it is measured against."""

    model: PreTrainedModel
    reference: Reference
    merge: MergeReport | None
    trained: Peaks = field(default_factory=dict)
    """Of the rows that training quantised to FP8, where the export is FP8 as well."""


def prepare(
    plan: ExportPlan,
    source: ExportSource,
    tokenizer: PreTrainedTokenizerBase,
    rows: ExportRows,
    scratch: Path,
    progress: Progress,
) -> Prepared:
    """Load the source, remember how it answers, and merge its adapter.

    Args:
        scratch: where weights wait that host memory does not hold; it has to outlive the model.

    Raises:
        ExportError: the adapter does not fit the base: a layer is missing or has another shape.
    """
    progress("loading the model")
    if source.is_qlora:
        return _prepare_qlora(plan, source, tokenizer, rows, progress)
    model = _load_on_disk(plan, source, scratch) if plan.residence == "by_layer" else _load(plan, source)
    if source.adapters is not None:
        with unread() if plan.residence == "by_layer" else nullcontext():
            model = put_on(model, source.adapters, source.base.path, error=ExportError)
    progress(f"measuring the source on {len(rows.check)} rows")
    reference = refer(model, tokenizer, rows, plan.residence)
    if source.adapters is None:
        return Prepared(model=model, reference=reference, merge=None)
    progress("merging the adapter")
    trained = row_peaks(model) if source.is_fp8_trained and plan.format == "fp8" else {}
    merged = merge(model)
    report = MergeReport(base="original", parity=parity(merged, rows, reference))
    return Prepared(model=merged, reference=reference, merge=report, trained=trained)


def _prepare_qlora(
    plan: ExportPlan,
    source: ExportSource,
    tokenizer: PreTrainedTokenizerBase,
    rows: ExportRows,
    progress: Progress,
) -> Prepared:
    """Merge onto the original base and onto the NF4 one dequantised; keep what is nearer to the running model.

    The adapter learnt beside the rounded weights, so usually the dequantised base is nearer; the original
    one is better where it learnt little of the rounding. One model is in memory at a time.
    """
    running = _load_nf4(plan, source, rows)
    progress(f"measuring the NF4 model on {len(rows.check)} rows")
    reference = refer(_adapted(running, source), tokenizer, rows, plan.residence)
    del running
    _free()
    found: dict[BaseName, Fidelity] = {}
    model: Any = None
    for base in _CANDIDATES:
        progress(f"merging onto the {base} base")
        del model
        _free()
        model = merge(_adapted(_CANDIDATES[base](plan, source, rows), source))
        found[base] = parity(model, rows, reference)
    nearest = min(found, key=lambda base: found[base].divergence)
    if nearest != base:
        del model
        _free()
        model = merge(_adapted(_CANDIDATES[nearest](plan, source, rows), source))
    (other,) = found.keys() - {nearest}
    report = MergeReport(base=nearest, parity=found[nearest], rejected_parity=found[other])
    return Prepared(model=model, reference=reference, merge=report)


def _load(plan: ExportPlan, source: ExportSource) -> Any:
    return load_weights(
        source.base.path, dtype=torch_dtype(plan.compute_dtype),
        trust_remote_code=plan.request.trust_remote_code, local_files_only=True,
    )  # fmt: skip


def _load_on_disk(plan: ExportPlan, source: ExportSource, scratch: Path) -> Any:
    return load_on_disk(
        source.base.path, scratch, dtype=torch_dtype(plan.compute_dtype),
        trust_remote_code=plan.request.trust_remote_code,
    )  # fmt: skip


def _load_nf4(plan: ExportPlan, source: ExportSource, rows: ExportRows) -> Any:
    """The base as the QLoRA run had it: the same layers in NF4, scales quantised or not."""
    training: TrainPlan = source.require_training()
    settings = nf4_config(training)
    dtype = torch_dtype(plan.compute_dtype)
    settings.bnb_4bit_compute_dtype = dtype
    return load_weights(
        source.base.path, dtype=dtype, quantization_config=settings, device_map={"": rows.device},
        trust_remote_code=plan.request.trust_remote_code, local_files_only=True,
    )  # fmt: skip


def _dequantised(plan: ExportPlan, source: ExportSource, rows: ExportRows) -> Any:
    model = _load_nf4(plan, source, rows).dequantize(dtype=torch_dtype(plan.compute_dtype))
    return model.to("cpu")


_CANDIDATES: dict[BaseName, Callable[[ExportPlan, ExportSource, ExportRows], Any]] = {
    "original": lambda plan, source, rows: _load(plan, source),
    "dequantised": _dequantised,
}


def _adapted(model: Any, source: ExportSource) -> Any:
    if source.adapters is None:
        raise ValueError("a QLoRA result without an adapter")
    return put_on(model, source.adapters, source.base.path, error=ExportError)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
