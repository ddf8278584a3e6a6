"""The pages of ``adaptft export``: the plan, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from adaptft.cli.tables import pairs, remarks
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS
from adaptft.reports import ExportReport
from adaptft.units import format_bytes, format_seconds


def render_export_plan(plan: ExportPlan, title: str, folder: Path, notes: Iterable[str] = ()) -> RenderableType:
    """What will be done, with reasons."""
    facts, why = FORMATS[plan.format], plan.reasons
    rows = [
        ("Source", title),
        ("Format", f"{plan.format}: {facts.title}"),
        ("Size", f"{format_bytes(plan.predicted_bytes)} (16 bit: {format_bytes(plan.source_bytes)})"),
        ("Device", f"{plan.device}, {plan.compute_dtype}: {why['device']}; {why['compute_dtype']}"),
    ]
    if facts.is_compressed:
        rows.append(("Layers", f"{plan.num_compressed_modules} linear layers; {why['ignored_modules']}"))
        rows.append(("In 16 bit", ", ".join(map(readable_pattern, plan.ignored_modules))))
    if plan.group_size is not None:
        rows.append(("Groups", f"of {plan.group_size}: {why['group_size']}; {why['symmetric']}"))
    if plan.num_calibration_rows:
        wanted = f"{plan.num_calibration_rows} rows of at most {plan.max_length} tokens"
        rows.append(("Calibration", f"{wanted}: {why['calibration']}"))
    if "experts" in why:
        rows.append(("Experts", why["experts"]))
    rows += [("Served by", plan.servable_on), ("Folder", str(folder))]
    return _page(Text("Export plan", "bold"), rows, plan.warnings, notes)


def render_export_report(report: ExportReport) -> RenderableType:
    """What was written, and how far it is from its source."""
    rows = [
        ("Folder", report.path),
        ("Size", f"{format_bytes(report.exported_bytes)} of {format_bytes(report.source_bytes)}"),
        ("Layers", f"{report.num_quantized_modules} of {report.num_linear_modules} linear layers compressed"),
        ("Bits", f"{report.bits_per_weight:.2f} a weight in these layers, scales counted"),
        ("Loss", _loss(report)),
        ("Calibration", report.calibration),
        ("Time", format_seconds(report.seconds)),
        ("Next", f"adaptft serve {report.path}"),
    ]
    if not report.num_quantized_modules:
        rows = [row for row in rows if row[0] not in ("Layers", "Bits", "Calibration")]
    return _page(Text("Exported, and loaded back", "bold green"), rows, (), report.notes)


def readable_pattern(pattern: str) -> str:
    r"""``re:.*\.mlp\.gate$`` as ``mlp.gate``."""
    return pattern.removeprefix("re:").removeprefix(r".*\.").removesuffix("$").replace("\\", "").replace("d+", "*")


def _loss(report: ExportReport) -> str:
    exported = "not measured" if report.exported_loss is None else f"{report.exported_loss:.4f}"
    if report.source_loss is None or report.exported_loss is None:
        return f"{exported} nats a token on {report.checked_on}"
    change = report.exported_loss - report.source_loss
    return f"{report.source_loss:.4f} -> {exported} nats a token on {report.checked_on} ({change:+.4f})"


def _page(
    title: Text, rows: Iterable[tuple[str, str]], warnings: Iterable[str], notes: Iterable[str]
) -> RenderableType:
    warnings, notes = tuple(warnings), tuple(notes)
    sections: list[RenderableType] = [title, pairs(rows)]
    sections += [remarks(warnings, mark="!")] if warnings else []
    sections += [remarks(notes)] if notes else []
    return Group(*(Padding(section, (0, 0, 1, 0)) for section in sections))
