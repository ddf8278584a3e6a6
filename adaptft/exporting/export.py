"""Carries an export plan out: merge, compress, save, check, and only then move the folder to its place."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from adaptft import __version__, quiet
from adaptft.artifacts import Artifact, write_artifact
from adaptft.errors import ExportError, ModelError
from adaptft.evaluation import score, score_folder
from adaptft.exporting.cards import write_card
from adaptft.exporting.checking import FileCount, check_count, check_loss, count_files
from adaptft.exporting.compressing import compress
from adaptft.exporting.merging import load_merged, torch_dtype
from adaptft.exporting.rows import ExportRows, read_rows
from adaptft.exporting.sources import ExportSource
from adaptft.models import load_tokenizer, save_companions
from adaptft.optional import check_installed
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS
from adaptft.quiet import printing_to
from adaptft.records import write_json
from adaptft.reports import ExportReport

Progress = Callable[[str], None]

_SHARD_SIZE = "5GB"
_GPU_SLACK = 1.2
"""GPU memory over the weights: activations and the pieces of logits of the check."""
_PACKAGES = ("torch", "transformers", "peft", "llmcompressor", "compressed-tensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What is known once the weights are on disk."""

    num_linears: int
    source_loss: float | None
    notes: tuple[str, ...]


def export(
    plan: ExportPlan, source: ExportSource, folder: Path, *, progress: Progress = lambda _: None
) -> ExportReport:
    """Export ``source`` to ``folder`` as ``plan`` says.

    Everything is written beside ``folder`` under a temporary name and renamed at the end: the folder is
    there and checked, or it is not there.

    Args:
        progress: is told in words what is being done.

    Raises:
        MissingPackage: the format needs llm-compressor and it is not installed.
        ExportError: the adapter does not fit, nothing was compressed, or the result gives no numbers.
        DataError: the rows that the user named cannot be used.
    """
    start = time.perf_counter()
    quiet.libraries()
    if FORMATS[plan.format].is_compressed:
        check_installed("llmcompressor", purpose=f"--format {plan.format}")
    progress("reading rows")
    tokenizer = load_tokenizer(source.companions, trust_remote_code=plan.request.trust_remote_code)
    rows = read_rows(plan, source, tokenizer)
    with _replacing(folder) as partial:
        written = _write(plan, source, partial, tokenizer, rows, progress)
        progress("loading the export back")
        exported_loss = _exported_loss(plan, partial, rows)
        found = count_files(partial)
        report = _report(plan, folder, found, rows, written, exported_loss, time.perf_counter() - start)
        _describe(partial, folder.name, plan, source, report)
    return report


def _write(
    plan: ExportPlan, source: ExportSource, partial: Path, tokenizer: Any, rows: ExportRows, progress: Progress
) -> _Written:
    """Merge, score, compress and save into ``partial``. The model's memory is free again afterwards."""
    log = partial.with_suffix(".log")
    try:
        with printing_to(log):
            progress("loading the model" + (" and merging the adapter" if source.adapters else ""))
            model = load_merged(
                source.base.path, source.adapters, dtype=plan.compute_dtype,
                trust_remote_code=plan.request.trust_remote_code,
            )  # fmt: skip
            progress(f"measuring the source on {len(rows.check)} rows")
            source_loss, notes = _source_loss(model, plan, rows)
            num_linears = sum(isinstance(module, torch.nn.Linear) for module in model.modules())
            if FORMATS[plan.format].is_compressed:
                progress(f"compressing to {plan.format}")
                num_linears = compress(model, tokenizer, plan, rows.calibration)
            progress("saving")
            model.to(torch_dtype(plan.saved_dtype)).save_pretrained(partial, max_shard_size=_SHARD_SIZE)
            _write_tie(partial / "config.json", model)
            _open_to_readers(partial)
            notes += save_companions(source.companions, partial, base=source.base.path)
    finally:
        log.unlink(missing_ok=True)
    del model
    gc.collect()
    return _Written(num_linears=num_linears, source_loss=source_loss, notes=notes)


def _write_tie(path: Path, model: PreTrainedModel) -> None:
    """llm-compressor writes the base's config.json; a head that merging made the model's own must be in it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    tied = bool(model.config.tie_word_embeddings)
    if config.get("tie_word_embeddings", True) != tied:
        write_json(path, json.dumps(config | {"tie_word_embeddings": tied}, indent=2) + "\n")


def _open_to_readers(folder: Path) -> None:
    """safetensors keeps its files to their owner; a server that runs as somebody else has to read them too."""
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode)


def _source_loss(model: PreTrainedModel, plan: ExportPlan, rows: ExportRows) -> tuple[float | None, tuple[str, ...]]:
    """The loss before compression; on the GPU where the plan is for one and the model has room there."""
    if plan.device == "cpu":
        return score(model, rows.check).loss, ()
    if not _has_room_on_gpu(plan):
        return None, (
            "The model is too large for one GPU, so the export was counted but not loaded: compare losses "
            "with `adaptft eval` on a machine that holds it.",
        )
    try:
        return score(model.to("cuda"), rows.check).loss, ()
    finally:
        model.to("cpu")
        torch.cuda.empty_cache()


def _has_room_on_gpu(plan: ExportPlan) -> bool:
    """transformers widens a compressed checkpoint as it runs it: the export needs what its source does."""
    free, _ = torch.cuda.mem_get_info()
    return plan.model.num_parameters * torch_dtype(plan.compute_dtype).itemsize * _GPU_SLACK < free


def _exported_loss(plan: ExportPlan, partial: Path, rows: ExportRows) -> float | None:
    """Load the export as a user would, and score it on the rows that the source was scored on."""
    if plan.device == "cuda" and not _has_room_on_gpu(plan):
        return None
    log = partial.with_suffix(".log")
    try:
        with printing_to(log):
            return score_folder(
                partial, None, rows.check, device=plan.device, dtype=plan.compute_dtype,
                trust_remote_code=plan.request.trust_remote_code,
            ).loss  # fmt: skip
    except ModelError as cause:
        raise ExportError(
            f"The export was written, but transformers cannot load it back: {cause.problem}",
            fix="Nothing was kept. Use another format; merged and fp8 work for every architecture.",
        ) from cause
    finally:
        log.unlink(missing_ok=True)


def _report(
    plan: ExportPlan,
    folder: Path,
    found: FileCount,
    rows: ExportRows,
    written: _Written,
    exported_loss: float | None,
    seconds: float,
) -> ExportReport:
    notes = (*plan.warnings, *rows.notes, *written.notes, *check_count(found, plan.num_compressed_modules))
    if written.source_loss is not None and exported_loss is not None:
        notes += check_loss(written.source_loss, exported_loss, FORMATS[plan.format].expected_loss_rise)
    calibration = "none needed"
    if rows.calibration is not None:
        calibration = f"{len(rows.calibration)} rows of at most {plan.max_length} tokens from {rows.source}"
    return ExportReport(
        format=plan.format,
        path=str(folder),
        num_quantized_modules=len(found.compressed_modules),
        num_linear_modules=written.num_linears,
        bits_per_weight=found.bits_per_weight,
        source_bytes=plan.source_bytes,
        exported_bytes=found.num_bytes,
        source_loss=written.source_loss,
        exported_loss=exported_loss,
        checked_on=f"{len(rows.check)} rows of {rows.source}",
        calibration=calibration,
        seconds=seconds,
        versions=_versions(),
        notes=notes,
    )


def _describe(partial: Path, name: str, plan: ExportPlan, source: ExportSource, report: ExportReport) -> None:
    """Write plan.json, report.json, README.md and adaptft.json."""
    known = source.artifact
    artifact = Artifact(
        kind="export",
        adaptft=__version__,
        base_model=known.base_model if known else source.base.name,
        base_path=str(source.base.path),
        base_fingerprint=source.base_fingerprint,
        train_type=known.train_type if known else None,
        format=plan.format,
        dataset=source.dataset,
        system=known.system if known else None,
        columns=known.columns if known else None,
        max_length=known.max_length if known else None,
        notes=report.notes,
    )
    write_json(partial / "plan.json", plan)
    write_json(partial / "report.json", report)
    write_card(partial, name, plan, source, report)
    write_artifact(partial, artifact)


def _versions() -> dict[str, str]:
    installed = {package: _version(package) for package in _PACKAGES}
    return {package: version for package, version in installed.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place when the block ends well, and vanishes otherwise."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        partial = Path(work) / folder.name
        partial.mkdir()
        yield partial
        if folder.exists():
            folder.rename(Path(work) / "replaced")
        partial.rename(folder)
