"""The history of this user's runs: what was predicted beside what was measured, a line of JSON a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec

from adaptft.home import cache_folder
from adaptft.plans import TrainPlan
from adaptft.records import from_dict, to_dict
from adaptft.reports import WARM_UP_STEPS, Comparison, RunReport

FILE_NAME = "accuracy.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAccuracy:
    """One finished run: what it was, and how far its plan was off."""

    date: str
    """The day it ended, as ``2026-11-30``."""
    adaptft: str
    device: str
    num_gpus: int
    model: str
    train_type: str
    compute: str
    micro_batch_size: int
    max_length: int
    checkpointed_layers: int
    peak_memory: Comparison | None
    """Bytes."""
    step_seconds: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Relative errors over several runs: +0.1 is a prediction 10 % too high."""

    num_runs: int
    mean_error: float
    """Of the errors' sizes."""
    worst_under: float
    """The most that was predicted too little, as a negative number (0 where nothing was)."""
    worst_over: float


def history_file() -> Path:
    """Where the history is; it need not be there."""
    return cache_folder(FILE_NAME)


def record_run(plan: TrainPlan, report: RunReport, date: str) -> None:
    """Add a finished run; one of too few steps, or continued from another process, has no speed to compare.

    Raises:
        OSError: the history cannot be written.
    """
    run = describe(plan, report, date)
    path = history_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(to_dict(run), ensure_ascii=False) + "\n")


def describe(plan: TrainPlan, report: RunReport, date: str) -> RunAccuracy:
    """The line of a run."""
    decisions = plan.decisions
    placement, batch = decisions.placement.value, decisions.batch.value
    boards = [gpu.name for gpu in plan.machine.gpus if gpu.index in placement.gpu_indices]
    timed = len(report.steps) > WARM_UP_STEPS
    return RunAccuracy(
        date=date,
        adaptft=report.versions.get("adaptft", ""),
        device=boards[0] if boards else plan.machine.cpu.model_name,
        num_gpus=placement.num_gpus,
        model=plan.model.name,
        train_type=decisions.method.value.train_type,
        compute=decisions.precision.value.compute,
        micro_batch_size=batch.micro_batch_size,
        max_length=batch.max_length,
        checkpointed_layers=decisions.checkpointing.value.layers,
        peak_memory=report.peak_memory,
        step_seconds=report.step_seconds if timed else None,
    )


def read_history(path: Path | None = None) -> tuple[tuple[RunAccuracy, ...], int]:
    """All runs, oldest first, and how many lines could not be understood (another version's, or cut off)."""
    path = history_file() if path is None else path
    if not path.exists():
        return (), 0
    runs, lost = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            runs.append(from_dict(RunAccuracy, json.loads(line)))
        except (ValueError, msgspec.ValidationError):
            lost += 1
    return tuple(runs), lost


def summarise(comparisons: list[Comparison | None]) -> Summary | None:
    """Over the runs that have both numbers; None where there is none."""
    errors = [found.error for found in comparisons if found is not None and found.error is not None]
    if not errors:
        return None
    return Summary(
        num_runs=len(errors),
        mean_error=mean(map(abs, errors)),
        worst_under=min(0.0, *errors),
        worst_over=max(0.0, *errors),
    )
