"""The rows of a plan: tokenised, split, fitted to length, packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaptft import data
from adaptft.plans import TrainPlan
from adaptft.reports import DataReport
from adaptft.requests import TrainRequest
from adaptft.training.batches import Rows
from adaptft.training.recovery import require_trained_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """What a run trains and evaluates on; ``evaluation`` is None where nothing is held out."""

    training: Rows
    evaluation: Rows | None
    report: DataReport
    notes: tuple[str, ...]


def prepare_rows(plan: TrainPlan, tokenizer: Any) -> TrainingRows:
    """Read and shape all rows as planned.

    Raises:
        DataError: from reading; see ``adaptft.data``.
        TrainingError: no token of the training rows is trained.
    """
    request = plan.request
    sources = request.dataset or (str(data.builtin("train")),)
    tokenized = data.tokenize(settings(request, sources), tokenizer)
    training, held_out = data.split(tokenized, plan.decisions.schedule.value.held_out_ratio, request.seed)
    require_trained_tokens(training.shape.num_trained_tokens)
    if request.val_dataset:
        held_out = data.tokenize(settings(request, request.val_dataset), tokenizer)
    rows, notes = _shape(plan, training.rows)
    evaluation = None if held_out is None else Rows(_shape(plan, held_out.rows)[0])
    return TrainingRows(training=Rows(rows), evaluation=evaluation, report=tokenized.report, notes=notes)


def settings(request: TrainRequest, sources: tuple[str, ...]) -> data.DataSettings:
    """How ``sources`` are read."""
    return data.DataSettings(
        sources=sources,
        hub=request.hub,
        columns=request.columns,
        system=request.system,
        train_on_prompt=request.train_on_prompt,
        mask_history=request.mask_history,
        max_bad_rows=request.max_bad_rows,
        num_proc=request.dataset_num_proc,
    )


def _shape(plan: TrainPlan, rows: Any) -> tuple[Any, tuple[str, ...]]:
    batch = plan.decisions.batch.value
    fitted, notes = data.fit_rows(rows, batch.max_length, plan.request.truncation_strategy)
    if batch.packing:
        fitted = data.pack(fitted, batch.max_length, plan.request.seed)
    return fitted, notes
