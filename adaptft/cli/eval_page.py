"""The page of ``adaptft eval``: one row a model."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from adaptft.cli.tables import remarks
from adaptft.reports import EvalReport
from adaptft.units import format_seconds


def render_scores(report: EvalReport, notes: Iterable[str] = ()) -> RenderableType:
    """Losses beside each other, and the distance of each from the first; or tasks, a column a model."""
    if report.tasks:
        return _render_tasks(report, notes)
    first = report.scores[0]
    heading = Text.assemble(
        ("Evaluation", "bold"),
        f" on {first.num_rows} rows, {first.num_tokens} tokens of answers, from {', '.join(report.dataset)}",
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("Model", style="bold", overflow="fold")
    for name in ("Loss", "Perplexity", "Change", "Time"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in report.scores:
        change = "" if score is first else f"{score.loss - first.loss:+.4f}"
        perplexity = f"{score.perplexity:.2f}" if score.perplexity < 1e6 else f"{score.perplexity:.2e}"
        table.add_row(score.name, f"{score.loss:.4f}", perplexity, change, format_seconds(score.seconds))
    sections: list[RenderableType] = [heading, table]
    data_warnings = report.data.warnings if report.data else ()
    said = (*notes, *report.notes, *data_warnings)
    sections += [remarks(said)] if said else []
    if report.data and report.data.num_rejected:
        sections.append(Text(f"{report.data.num_rejected} unusable rows were left out."))
    return Group(*(Padding(section, (0, 0, 1, 0)) for section in sections))


def _render_tasks(report: EvalReport, notes: Iterable[str]) -> RenderableType:
    models = list(dict.fromkeys(score.model for score in report.tasks))
    values = {(score.task, score.metric, score.model): score for score in report.tasks}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for name in ("Task", "Metric", "Rows"):
        table.add_column(name, style="bold" if name == "Task" else "", overflow="fold")
    for name in models:
        table.add_column(name, justify="right", overflow="fold")
    for task, metric in dict.fromkeys((score.task, score.metric) for score in report.tasks):
        scores = [values[task, metric, model] for model in models]
        table.add_row(task, metric, str(scores[0].num_rows), *(f"{score.value:.4f}" for score in scores))
    heading = Text.assemble(
        ("Evaluation", "bold"), " on tasks of lm-evaluation-harness, with each model's chat template"
    )
    said = (*notes, *report.notes)
    sections: list[RenderableType] = [heading, table, *([remarks(said)] if said else [])]
    return Group(*(Padding(section, (0, 0, 1, 0)) for section in sections))
