"""The rows of a plan: tokenised, split, fitted to length, packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import xxhash

from adaptft import data
from adaptft.data.tables import flat
from adaptft.plans import TrainPlan
from adaptft.reports import DataReport
from adaptft.requests import TrainRequest
from adaptft.training.batches import Rows
from adaptft.training.recovery import require_trained_tokens

HASHED_ROWS = 8192
"""Rows hashed at a time: memory stays small, whatever the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """What a run trains and evaluates on; ``evaluation`` is None where nothing is held out."""

    training: Rows
    evaluation: Rows | None
    report: DataReport
    notes: tuple[str, ...]
    rows_hash: str = ""
    """Of the tokens and loss masks of the training rows, before they are cut and packed."""


def prepare_rows(plan: TrainPlan, tokenizer: Any) -> TrainingRows:
    """Read and shape all rows as planned.

    Raises:
        DataError: from reading; see ``adaptft.data``.
        TrainingError: no token of the training rows is trained.
    """
    request = plan.request
    sources = request.dataset or (str(data.builtin("train")),)
    tokenized = data.tokenize(data.training_settings(request, sources), tokenizer)
    training, held_out = data.split(tokenized, plan.decisions.schedule.value.held_out_ratio, request.seed)
    require_trained_tokens(training.shape.num_trained_tokens)
    if request.val_dataset:
        held_out = data.tokenize(data.training_settings(request, request.val_dataset), tokenizer)
    rows, notes = _shape(plan, training.rows)
    if request.val_dataset and held_out is not None:
        notes += data.overlap_warning(training.rows, held_out.rows, request.val_dataset)
    evaluation = None if held_out is None else Rows(_shape(plan, held_out.rows)[0])
    return TrainingRows(
        training=Rows(rows), evaluation=evaluation, report=tokenized.report,
        notes=(*notes, *_unmet_wishes(request, evaluates=evaluation is not None)), rows_hash=hash_rows(training.rows),
    )  # fmt: skip


def hash_rows(rows: Any) -> str:
    """Sixteen hexadecimal digits of all rows of ``input_ids`` and ``trained``, in their order."""
    content = xxhash.xxh3_64()
    for table in rows.with_format("arrow").iter(HASHED_ROWS):
        for part in flat(table):
            content.update(part.tobytes())
    return str(content.hexdigest())


def _unmet_wishes(request: TrainRequest, *, evaluates: bool) -> tuple[str, ...]:
    """What was asked for and cannot be without held-out rows."""
    wished = [name for name in ("eval_strategy", "eval_steps") if name in request.given]
    if evaluates or not wished or request.eval_strategy == "no":
        return ()
    said = f"{wished[0]} {getattr(request, wished[0])}"
    return (f"{said}: no rows are held out, so nothing was evaluated; use --val_dataset or --split_dataset_ratio.",)


def _shape(plan: TrainPlan, rows: Any) -> tuple[Any, tuple[str, ...]]:
    batch = plan.decisions.batch.value
    fitted, notes = data.fit_rows(rows, batch.max_length, plan.request.truncation_strategy)
    if batch.packing:
        fitted = data.pack(fitted, batch.max_length, plan.request.seed)
    return fitted, notes
