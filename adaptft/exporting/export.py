"""Carries an export plan out: merge, compress, save, pass the gate, and only then move the folder to its place."""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaptft import quiet
from adaptft.data.rendering import FILE_NAME as RENDERING
from adaptft.data.rendering import write_rendering
from adaptft.errors import ExportError, ModelError
from adaptft.exporting import layers
from adaptft.exporting.checking import count_files
from adaptft.exporting.compressing import compress
from adaptft.exporting.describing import describe, versions
from adaptft.exporting.fitting import fit
from adaptft.exporting.gate import check, judge
from adaptft.exporting.loading_back import loaded_back
from adaptft.exporting.merging import torch_dtype
from adaptft.exporting.own_memory import watched
from adaptft.exporting.preparing import prepare
from adaptft.exporting.reference import Reference, compare_export
from adaptft.exporting.replacing import replacing
from adaptft.exporting.rows import ExportRows, read_rows
from adaptft.exporting.sources import ExportSource
from adaptft.exporting.trained_scales import Peaks, keep_trained_scales
from adaptft.models import load_tokenizer, save_companions
from adaptft.optional import check_installed
from adaptft.plans import ExportPlan, Residence
from adaptft.policy.format_table import FORMATS
from adaptft.quiet import printing_to
from adaptft.records import write_json
from adaptft.reports import AnswerPair, ExportReport, Fidelity, MergeReport

Progress = Callable[[str], None]

_SHARD_SIZES: dict[Residence, str] = {"twice": "5GB", "once": "2GB", "by_layer": "1GB"}
"""A shard is in memory while it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What is known once the weights are on disk."""

    num_linears: int
    reference: Reference
    merge: MergeReport | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    seconds: float
    peak_host_bytes: int | None


def export(
    plan: ExportPlan, source: ExportSource, folder: Path, *, progress: Progress = lambda _: None
) -> ExportReport:
    """Export ``source`` to ``folder`` as ``plan`` says.

    Everything is written beside ``folder`` under a temporary name and renamed at the end: the folder is
    there and has passed the gate (or is marked), or it is not there.

    Args:
        progress: is told in words what is being done.

    Raises:
        MissingPackage: the format needs llm-compressor and it is not installed.
        ExportError: the adapter does not fit, nothing was compressed, or the result is too far from its source.
        DataError: the rows that the user named cannot be used.
    """
    start = time.perf_counter()
    quiet.libraries()
    if FORMATS[plan.format].is_compressed:
        check_installed("llmcompressor", purpose=f"--format {plan.format}")
    if plan.residence == "by_layer":
        layers.check_possible()
    if source.is_qlora:
        check_installed("bitsandbytes", purpose="Comparing with the QLoRA model")
    progress("reading rows")
    tokenizer = load_tokenizer(source.companions, trust_remote_code=plan.request.trust_remote_code)
    rows = read_rows(plan, source, tokenizer)
    with watched() as memory, replacing(folder) as partial:
        written = _write(plan, source, partial, tokenizer, rows, progress)
        progress("loading the export back and comparing it with its source")
        fidelity, answers = _measure(plan, partial, tokenizer, rows, written.reference)
        spent = _Spent(seconds=time.perf_counter() - start, peak_host_bytes=memory.num_bytes)
        report = _report(plan, partial, folder, rows, written, fidelity, answers, spent)
        describe(partial, folder.name, plan, source, report)
    return report


def _write(
    plan: ExportPlan,
    source: ExportSource,
    partial: Path,
    tokenizer: PreTrainedTokenizerBase,
    rows: ExportRows,
    progress: Progress,
) -> _Written:
    """Merge, measure, compress and save into ``partial``. The model's memory is free again afterwards."""
    log, scratch = partial.with_suffix(".log"), partial.with_suffix(".source")
    try:
        with printing_to(log):
            prepared = prepare(plan, source, tokenizer, rows, scratch, progress)
            model = prepared.model
            num_linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
            scales: tuple[str, ...] = ()
            if FORMATS[plan.format].is_compressed:
                if plan.num_calibration_rows and FORMATS[plan.format].is_fitted:
                    progress("looking at what the layers get, and rounding for it")
                    fit(model, plan, rows, prepared.trained)
                progress(f"compressing to {plan.format}")
                num_linears = compress(model, tokenizer, plan, rows.calibration)
                scales = _keep_scales(model, prepared.trained)
            progress("saving")
            _save(model, plan, partial)
            _write_tie(partial / "config.json", model)
            _open_to_readers(partial)
            notes = save_companions(source.companions, partial, base=source.base.path)
            _keep_rendering(source.companions, partial, tokenizer)
            reference, merged = prepared.reference, prepared.merge
            del prepared, model
            gc.collect()
            return _Written(num_linears=num_linears, reference=reference, merge=merged, notes=(*notes, *scales))
    finally:
        log.unlink(missing_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _keep_scales(model: Any, trained: Peaks) -> tuple[str, ...]:
    if not trained:
        return ()
    kept, total = keep_trained_scales(model, trained)
    return (f"{kept} of {total} rows under the adapter keep the FP8 scales that training computed with.",)


def _save(model: Any, plan: ExportPlan, partial: Path) -> None:
    dtype, shard_size = torch_dtype(plan.saved_dtype), _SHARD_SIZES[plan.residence]
    if plan.residence == "by_layer":
        layers.cast(model, dtype)
        layers.save(model, partial, shard_size=shard_size)
    else:
        model.to(dtype).save_pretrained(partial, max_shard_size=shard_size)


def _write_tie(path: Path, model: PreTrainedModel) -> None:
    """llm-compressor writes the base's config.json; a head that merging made the model's own must be in it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    tied = bool(model.config.tie_word_embeddings)
    if config.get("tie_word_embeddings", True) != tied:
        write_json(path, json.dumps(config | {"tie_word_embeddings": tied}, indent=2) + "\n")


def _keep_rendering(source: Path, partial: Path, tokenizer: Any) -> None:
    """How training wrote conversations, as it recorded it; for other models, as their own template does."""
    recorded = source / RENDERING
    if recorded.is_file():
        shutil.copyfile(recorded, partial / RENDERING)
    else:
        write_rendering(partial, tokenizer)


def _open_to_readers(folder: Path) -> None:
    """safetensors keeps its files to their owner; a server that runs as somebody else has to read them too."""
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode)


def _measure(
    plan: ExportPlan, partial: Path, tokenizer: Any, rows: ExportRows, reference: Reference
) -> tuple[Fidelity, tuple[AnswerPair, ...]]:
    """Load the export as a user would, and hold it beside its source."""
    log = partial.with_suffix(".log")
    try:
        with (
            printing_to(log),
            loaded_back(plan, partial, rows.device) as model,
        ):
            return compare_export(model, tokenizer, rows, reference)
    except ModelError as cause:
        raise ExportError(
            f"The export was written, but transformers cannot load it back: {cause.problem}",
            fix="Nothing was kept. Use another format; merged and fp8 work for every architecture.",
        ) from cause
    finally:
        log.unlink(missing_ok=True)


def _report(
    plan: ExportPlan,
    partial: Path,
    folder: Path,
    rows: ExportRows,
    written: _Written,
    fidelity: Fidelity,
    answers: tuple[AnswerPair, ...],
    spent: _Spent,
) -> ExportReport:
    found = count_files(partial)
    gate = judge(plan, found, fidelity, answers, written.merge, rows=rows.checked_on, device=rows.device)
    return ExportReport(
        format=plan.format,
        path=str(folder),
        num_quantized_modules=len(found.compressed_modules),
        num_linear_modules=written.num_linears,
        bits_per_weight=found.bits_per_weight,
        source_bytes=plan.source_bytes,
        exported_bytes=found.num_bytes,
        gate=gate,
        merge=written.merge,
        calibration=rows.calibrated_on(plan.max_length),
        seconds=spent.seconds,
        predicted_seconds=plan.predicted_seconds,
        peak_host_bytes=spent.peak_host_bytes,
        predicted_host_bytes=plan.predicted_host_bytes,
        versions=versions(),
        notes=(*check(plan, gate), *plan.warnings, *rows.notes, *written.notes),
    )
