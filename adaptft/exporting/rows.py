"""The rows an export needs: some to calibrate with, and others to compare losses on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from adaptft import data
from adaptft.errors import DataError
from adaptft.exporting.sources import ExportSource
from adaptft.plans import ExportPlan

_CHECK_TOKENS = {"cuda": 32768, "cpu": 1024}
"""Tokens the losses are compared on. A CPU emulates FP8: 1,024 tokens of a 135 M model take 5 s there."""
_CHECK_LENGTH = 1024
_MOST_CHECK_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRows:
    """Calibration rows (None: the format needs none), rows for the check, and where both come from."""

    calibration: Dataset | None
    check: Dataset
    source: str
    notes: tuple[str, ...] = ()


def read_rows(plan: ExportPlan, source: ExportSource, tokenizer: PreTrainedTokenizerBase) -> ExportRows:
    """Read the request's rows, else the training data, else the built-in data (with a note).

    The check's rows are none of the calibration's.

    Raises:
        DataError: rows that the user named cannot be read, or no row is left.
    """
    wanted = plan.num_calibration_rows + _MOST_CHECK_ROWS
    if plan.request.dataset:
        rows = _tokenize(plan.request.dataset, plan.request.columns, wanted, plan, source, tokenizer)
        return _divide(plan, rows, ", ".join(plan.request.dataset), ())
    why = "The training data is not known"
    if source.dataset:
        try:
            columns = source.artifact.columns if source.artifact else None
            rows = _tokenize(source.dataset, columns, wanted, plan, source, tokenizer)
            return _divide(plan, rows, f"the training data ({', '.join(source.dataset)})", ())
        except DataError as cause:
            why = f"The training data cannot be used ({cause.problem.rstrip('.')})"
    rows = _tokenize((str(data.builtin("train")),), None, wanted, plan, source, tokenizer)
    purpose = "to calibrate and to check" if plan.num_calibration_rows else "to check"
    note = f"{why}, so the built-in rows were taken {purpose}; name better ones with --dataset."
    return _divide(plan, rows, "the built-in rows", (note,))


def _tokenize(
    sources: tuple[str, ...],
    columns: str | None,
    wanted: int,
    plan: ExportPlan,
    source: ExportSource,
    tokenizer: PreTrainedTokenizerBase,
) -> Dataset:
    """At most ``wanted`` rows of each source, through the chat template: what the model was trained on."""
    parts = tuple(name if "#" in name else f"{name}#{wanted}" for name in sources)
    system = source.artifact.system if source.artifact else None
    settings = data.DataSettings(sources=parts, hub=plan.request.hub, columns=columns, system=system)
    rows: Dataset = data.tokenize(settings, tokenizer).rows
    return rows.shuffle(seed=42)


def _divide(plan: ExportPlan, rows: Dataset, source: str, notes: tuple[str, ...]) -> ExportRows:
    num_check = min(_MOST_CHECK_ROWS, max(1, len(rows) // 4))
    check = _check_rows(rows.select(range(len(rows) - num_check, len(rows))), _CHECK_TOKENS[plan.device])
    if not plan.num_calibration_rows:
        return ExportRows(calibration=None, check=check, source=source, notes=notes)
    count = min(plan.num_calibration_rows, len(rows) - num_check)
    if count < 1:
        raise DataError(f"{source} has too few rows to calibrate with.", fix="Name more rows with --dataset.")
    if count < plan.num_calibration_rows:
        notes += (f"Only {count} of {plan.num_calibration_rows} calibration rows were there.",)
    calibration = Dataset.from_dict({"input_ids": [ids[: plan.max_length] for ids in rows[:count]["input_ids"]]})
    return ExportRows(calibration=calibration, check=check, source=source, notes=notes)


def _check_rows(rows: Dataset, max_tokens: int) -> Dataset:
    """As many rows as ``max_tokens`` hold, one at least; longer rows are cut, since only losses are compared."""
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
