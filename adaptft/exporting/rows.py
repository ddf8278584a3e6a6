"""The rows an export needs: some to calibrate with, and others, held out, to compare it with its source on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from adaptft import data
from adaptft.errors import DataError
from adaptft.exporting.sources import ExportSource
from adaptft.plans import DTYPE_NAMES, ExportPlan, TrainPlan
from adaptft.policy.devices import Device
from adaptft.policy.format_table import CHECK_TOKENS

_CHECK_LENGTH = 1024
_MOST_CHECK_ROWS = 64
_GPU_SLACK = 1.2
"""GPU memory over the weights: activations and the pieces of logits of the check."""
_BUILTIN = "the built-in rows"
_TOO_LARGE = ("The model is too large for one GPU, so it was compared with its source on the CPU and on fewer tokens.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRows:
    """Calibration rows (None: the format needs none), rows for the check, and where both come from."""

    calibration: Dataset | None
    check: Dataset
    source: str
    is_held_out: bool
    """True where the check's rows are known not to have been trained on."""
    device: Device
    """Where the check runs."""
    notes: tuple[str, ...] = ()

    @property
    def checked_on(self) -> str:
        """The check's rows in words."""
        how = "held out from training" if self.is_held_out else "not used for calibration"
        return f"{len(self.check)} rows of {self.source}, {how}"

    def calibrated_on(self, max_length: int) -> str:
        """The calibration rows in words."""
        if self.calibration is None:
            return "none needed"
        return f"{len(self.calibration)} rows of at most {max_length} tokens from {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Rows in words and tokens; ``held_out`` is None where they were not divided yet."""

    rows: Dataset
    source: str
    held_out: Dataset | None = None
    are_new: bool = False
    """True where the model was not trained on any of them, as far as is known."""
    notes: tuple[str, ...] = ()


def read_rows(plan: ExportPlan, source: ExportSource, tokenizer: PreTrainedTokenizerBase) -> ExportRows:
    """Read the request's rows, else the training data, else the built-in data (with a note).

    The check's rows are none of the calibration's, and those that training held out where that is known.

    Raises:
        DataError: rows that the user named cannot be read, or no row is left.
    """
    device = _measuring_device(plan)
    moved = _TOO_LARGE if device != plan.device else ()
    found = _named(plan, source, tokenizer) or _trained_on(plan, source, tokenizer)
    return _divide(plan, found, device, moved)


def _measuring_device(plan: ExportPlan) -> Device:
    """transformers widens a compressed checkpoint as it runs it: the export needs what its source does."""
    if plan.device == "cpu" or plan.residence == "by_layer":
        return "cpu"
    free, _ = torch.cuda.mem_get_info()
    dtype: torch.dtype = getattr(torch, DTYPE_NAMES[plan.compute_dtype])
    return "cuda" if plan.model.num_parameters * dtype.itemsize * _GPU_SLACK < free else "cpu"


def _named(plan: ExportPlan, source: ExportSource, tokenizer: PreTrainedTokenizerBase) -> _Found | None:
    """The rows that the request names."""
    if not plan.request.dataset:
        return None
    rows = _tokenize(plan.request.dataset, plan.request.columns, plan, source, tokenizer)
    trained = set(source.dataset)
    return _Found(
        rows=rows,
        source=_words(plan.request.dataset),
        are_new=bool(trained) and trained.isdisjoint(plan.request.dataset),
    )


def _trained_on(plan: ExportPlan, source: ExportSource, tokenizer: PreTrainedTokenizerBase) -> _Found:
    """The training data, split as training split it; the built-in rows where it is unknown or gone."""
    why = "The training data is not known"
    try:
        if source.training is not None:
            return _as_in_training(source.training, tokenizer)
        if source.dataset:
            columns = source.artifact.columns if source.artifact else None
            rows = _tokenize(source.dataset, columns, plan, source, tokenizer)
            return _Found(rows=rows, source=_training_words(source.dataset))
    except DataError as cause:
        why = f"The training data cannot be used ({cause.problem.rstrip('.')})"
    rows = _tokenize((str(data.builtin("train")),), None, plan, source, tokenizer)
    purpose = "to calibrate and to check" if plan.num_calibration_rows else "to check"
    note = f"{why}, so the built-in rows were taken {purpose}; name better ones with --dataset."
    return _Found(rows=rows, source=_BUILTIN, notes=(note,))


def _as_in_training(training: TrainPlan, tokenizer: PreTrainedTokenizerBase) -> _Found:
    """The same rows in the same split as the run's: same sources, same settings, same seed."""
    request = training.request
    sources = request.dataset or (str(data.builtin("train")),)
    tokenized = data.tokenize(data.training_settings(request, sources), tokenizer)
    rest, held_out = data.split(tokenized, training.decisions.schedule.value.held_out_ratio, request.seed)
    if request.val_dataset:
        held_out = data.tokenize(data.training_settings(request, request.val_dataset), tokenizer)
    return _Found(
        rows=rest.rows.shuffle(seed=42),
        source=_training_words(sources),
        held_out=None if held_out is None else held_out.rows.shuffle(seed=42),
    )


def _training_words(sources: tuple[str, ...]) -> str:
    return f"the training data ({_words(sources)})"


def _words(sources: tuple[str, ...]) -> str:
    return ", ".join(_BUILTIN if name == str(data.builtin("train")) else name for name in sources)


def _tokenize(
    sources: tuple[str, ...],
    columns: str | None,
    plan: ExportPlan,
    source: ExportSource,
    tokenizer: PreTrainedTokenizerBase,
) -> Dataset:
    """As many rows of each source as are needed, through the chat template: what the model was trained on."""
    wanted = plan.num_calibration_rows + _MOST_CHECK_ROWS
    parts = tuple(name if "#" in name else f"{name}#{wanted}" for name in sources)
    system = source.artifact.system if source.artifact else None
    settings = data.DataSettings(sources=parts, hub=plan.request.hub, columns=columns, system=system)
    rows: Dataset = data.tokenize(settings, tokenizer).rows
    return rows.shuffle(seed=42)


def _divide(plan: ExportPlan, found: _Found, device: Device, notes: tuple[str, ...]) -> ExportRows:
    rows, held_out, notes = found.rows, found.held_out, (*notes, *found.notes)
    if held_out is None:
        num_check = min(_MOST_CHECK_ROWS, max(1, len(rows) // 4))
        held_out = rows.select(range(len(rows) - num_check, len(rows)))
        rows = rows.select(range(len(rows) - num_check))
    check = _check_rows(held_out.select(range(min(_MOST_CHECK_ROWS, len(held_out)))), CHECK_TOKENS[device])
    is_held_out = found.held_out is not None or found.are_new
    calibration = None
    if plan.num_calibration_rows:
        count = min(plan.num_calibration_rows, len(rows))
        if count < 1:
            raise DataError(f"{found.source} has too few rows to calibrate with.", fix="Name more rows with --dataset.")
        if count < plan.num_calibration_rows:
            notes += (f"Only {count} of {plan.num_calibration_rows} calibration rows were there.",)
        calibration = Dataset.from_dict({"input_ids": [ids[: plan.max_length] for ids in rows[:count]["input_ids"]]})
    return ExportRows(
        calibration=calibration, check=check, source=found.source, is_held_out=is_held_out, device=device, notes=notes
    )


def _check_rows(rows: Dataset, max_tokens: int) -> Dataset:
    """As many rows as ``max_tokens`` hold, one at least; longer rows are cut, since only predictions are compared."""
    kept: list[dict[str, Any]] = []
    total = 0
    for row in rows:
        ids, trained = row["input_ids"][:_CHECK_LENGTH], row["trained"][:_CHECK_LENGTH]
        if not any(trained[1:]):
            continue
        if kept and total + len(ids) > max_tokens:
            break
        kept.append({"input_ids": ids, "trained": trained})
        total += len(ids)
    if not kept:
        raise DataError("No row has a trained token to check the export on.", fix="Name other rows with --dataset.")
    return Dataset.from_list(kept)
