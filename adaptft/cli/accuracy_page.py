"""``adaptft plan --accuracy``: how far the plans of this user's runs were off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from adaptft.accuracy import RunAccuracy, Summary, history_file, read_history, summarise
from adaptft.records import to_dict
from adaptft.reports import Comparison
from adaptft.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_RUNS = 20


def print_accuracy(*, as_json: bool) -> None:
    """The history, or that there is none yet."""
    runs, lost = read_history()
    summaries = {
        "peak memory": summarise([run.peak_memory for run in runs]),
        "step time": summarise([run.step_seconds for run in runs]),
    }
    if as_json:
        found = {"file": str(history_file()), "runs": [to_dict(run) for run in runs], "lines_not_understood": lost}
        found["summary"] = {name: to_dict(summary) if summary else None for name, summary in summaries.items()}
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    from adaptft.cli.screens import show

    show(render(runs, summaries, lost))


def render(runs: tuple[RunAccuracy, ...], summaries: dict[str, Summary | None], lost: int) -> RenderableType:
    """The last runs, and the errors over all of them."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from adaptft.cli.tables import pairs, remarks

    if not runs:
        return Text("No run was finished here yet: each adaptft train adds a line to " + str(history_file()))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("date", "model", "on", "memory", "step"):
        table.add_column(heading, justify="right" if heading in ("memory", "step") else "left", overflow="fold")
    for run in runs[-MOST_RUNS:]:
        count = f"{run.num_gpus} x " if run.num_gpus > 1 else ""
        table.add_row(
            run.date,
            Text(f"{run.model}, {run.train_type} {run.compute}, {run.micro_batch_size} x {run.max_length}"),
            Text(f"{count}{run.device}"),
            _compared(run.peak_memory, format_bytes),
            _compared(run.step_seconds, format_seconds),
        )
    words = [(name.capitalize(), _summary(summary)) for name, summary in summaries.items()]
    notes = [f"{lost} lines of {history_file()} are of another version and were left out."] if lost else []
    notes += [f"The last {MOST_RUNS} of {len(runs)} runs are shown."] if len(runs) > MOST_RUNS else []
    return Group(Text("Predicted against measured", "bold"), table, pairs(words), remarks(notes))


def _compared(comparison: Comparison | None, words: Callable[[float], str]) -> str:
    if comparison is None:
        return "-"
    if comparison.predicted is None or comparison.error is None:
        return f"{words(comparison.measured)}, not predicted"
    return f"{words(comparison.measured)}, predicted {words(comparison.predicted)} ({comparison.error:+.0%})"


def _summary(summary: Summary | None) -> str:
    if summary is None:
        return "no run with a prediction"
    return (
        f"off by {summary.mean_error:.1%} on average over {summary.num_runs} "
        f"run{'s' * (summary.num_runs != 1)}; at worst {summary.worst_under:+.1%} and {summary.worst_over:+.1%}"
    )
