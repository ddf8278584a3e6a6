"""The gate on the screen: what was measured beside its limit, and answers side by side."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from adaptft.reports import GateReport, MergeReport
from adaptft.units import format_number

_LETTERS = 160


def gate_table(gate: GateReport) -> Table:
    """One row a measure."""
    table = _table("Measure", "Source", "Export", "Limit")
    for line in gate.lines:
        source = "" if line.source is None else format_number(line.source)
        export = Text(format_number(line.export), "" if line.passes else "bold red")
        table.add_row(line.measure, source, export, f"{line.rule} {format_number(line.limit)}")
    return table


def answers_table(gate: GateReport) -> Table:
    """Greedy answers of both to the same prompts."""
    table = _table("Asked", "Source answers", "Export answers")
    for pair in gate.answers:
        table.add_row(_end_of(pair.prompt), _short(pair.source), _short(pair.export))
    return table


def merge_words(merge: MergeReport | None) -> str:
    """Where the adapter went, and how near the result is to the running model."""
    if merge is None:
        return ""
    said = f"into the {merge.base} base: KL {format_number(merge.parity.divergence)} to the adapter beside its base"
    if merge.rejected_parity is None:
        return said
    return f"{said}; into the other candidate {format_number(merge.rejected_parity.divergence)}"


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LETTERS else f"{words[:_LETTERS]} ..."


def _end_of(text: str) -> str:
    """A prompt begins with what all have in common."""
    words = " ".join(text.split())
    return words if len(words) <= _LETTERS else f"... {words[-_LETTERS:]}"
