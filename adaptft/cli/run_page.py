"""The page of ``adaptft train`` after a run: what was measured, on what basis, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from adaptft.cli.tables import commands, pairs, remarks
from adaptft.plans import TrainPlan
from adaptft.reports import WARM_UP_STEPS, Comparison, RunReport
from adaptft.units import format_bytes, format_seconds


def render_run(plan: TrainPlan, report: RunReport, folder: Path) -> RenderableType:
    """A finished run: losses, speed and memory, against the plan where it predicted them, and what to do next."""
    rows = [("Result", str(folder)), ("Report", str(folder / "report.json"))]
    if report.steps:
        rows.append(("Loss", _loss(report)))
    if not report.was_finished:
        rows += _measured(plan, report)
    steps = _steps(report)
    heading = (
        f"Finished before, with {steps}: nothing was trained and nothing changed" if report.was_finished else "Trained"
    )
    sections: list[RenderableType] = [Text(heading, "bold green"), pairs(rows)]
    sections += [remarks(report.notes)] if report.notes and not report.was_finished else []
    padded = (Padding(section, (0, 0, 1, 0)) for section in sections)
    return Group(*padded, commands("Next", _next(plan, folder)))


def _steps(report: RunReport) -> str:
    return f"{len(report.steps)} step{'' if len(report.steps) == 1 else 's'}"


def _loss(report: RunReport) -> str:
    """Of held-out rows; without any, of training rows, which are other ones in every step."""
    if report.initial_eval_loss is not None and report.final_eval_loss is not None:
        return f"held-out rows {report.initial_eval_loss:.4f} -> {report.final_eval_loss:.4f}"
    first, last = report.steps[0].loss, report.steps[-1].loss
    return f"first step {first:.4f}, last step {last:.4f}: each on its own training rows; none were held out"


def _measured(plan: TrainPlan, report: RunReport) -> list[tuple[str, str]]:
    basis = "after the first two steps" if len(report.steps) > WARM_UP_STEPS else "over all steps"
    rows = [
        ("Speed", f"{report.tokens_per_second:,.0f} tokens/s {basis}"),
        (
            "Time",
            f"{format_seconds(report.total_seconds)} with reading, loading and evaluation; {_steps(report)}, "
            f"{report.num_tokens / max(len(report.steps), 1):,.0f} tokens each on average",
        ),
    ]
    if report.step_seconds is not None:
        unknown = "" if plan.speed else "; not predicted: adaptft bench measures what this machine does"
        rows.append(("Step", _compared(report.step_seconds, format_seconds) + unknown))
    if report.peak_memory is not None:
        on_cpu = plan.decisions.placement.value.strategy == "cpu"
        meaning = "; measured is what the process grew by, buffers of libraries included" if on_cpu else ""
        rows.append(("Memory", _compared(report.peak_memory, format_bytes) + meaning))
    return rows


def _compared(comparison: Comparison, words: Callable[[float], str]) -> str:
    measured = words(comparison.measured)
    if comparison.predicted is None or comparison.error is None:
        return measured
    return f"{measured}, predicted {words(comparison.predicted)} ({comparison.error:+.0%})"


def _next(plan: TrainPlan, folder: Path) -> tuple[str, ...]:
    """Commands that take the result; rows it is evaluated on are named unless they are the built-in ones."""
    place = shlex.quote(str(folder))
    is_model = plan.decisions.method.value.train_type == "full"
    result = f"--model {place}" if is_model else f"--model {shlex.quote(plan.request.model)} --adapters {place}"
    request = plan.request
    if request.val_dataset:
        rows = f" --dataset {shlex.join(request.val_dataset)}"
    else:
        rows = " --dataset HELD_OUT.jsonl" if request.dataset else ""
    return f"adaptft eval {result}{rows}", f"adaptft serve {result}"
