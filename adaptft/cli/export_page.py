"""The pages of ``adaptft export``: the plan, and what came of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from adaptft.cli.gate_table import answers_table, gate_table, merge_words
from adaptft.cli.tables import commands, pairs, remarks
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS
from adaptft.reports import ExportReport
from adaptft.units import format_bytes, format_seconds

_PASSED = ("Exported, loaded back, and like its source", "bold green")


def render_export_plan(plan: ExportPlan, title: str, folder: Path, notes: Iterable[str] = ()) -> RenderableType:
    """What will be done, with reasons."""
    facts, why = FORMATS[plan.format], plan.reasons
    rows = [
        ("Source", title),
        ("Format", f"{plan.format}: {facts.title}"),
        ("Size", f"{format_bytes(plan.predicted_bytes)} (16 bit: {format_bytes(plan.source_bytes)})"),
        ("Device", f"{plan.device}, {plan.compute_dtype}: {why['device']}; {why['compute_dtype']}"),
    ]
    rows.append(("Memory", "; ".join(filter(None, (_host_memory(plan), why["residence"])))))
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
    limits = plan.limits
    rows += [
        (
            "Limits",
            f"KL at most {limits.divergence:g}, loss at most {limits.loss_rise:g} higher, the same top token in "
            f"{limits.top1:.0%} of the cases, or the export is refused",
        ),
        ("Time", f"{_predicted(plan)}{why['seconds']}"),
    ]
    rows += [("Served by", plan.servable_on), ("Folder", str(folder))]
    return _page(Text("Export plan", "bold"), rows, plan.warnings, notes)


def render_export_report(report: ExportReport) -> RenderableType:
    """What was written, and how far it is from its source."""
    rows = [
        ("Folder", report.path),
        ("Size", f"{format_bytes(report.exported_bytes)} of {format_bytes(report.source_bytes)}"),
        ("Layers", f"{report.num_quantized_modules} of {report.num_linear_modules} linear layers compressed"),
        ("Calibration", report.calibration),
        ("Merged", merge_words(report.merge)),
        ("Compared on", f"{report.gate.rows} ({report.gate.fidelity.num_tokens} tokens, {report.gate.device})"),
        ("Time", _time(report)),
    ]
    left_out = {"Layers", "Calibration"} if not report.num_quantized_modules else set()
    left_out |= {"Merged"} if report.merge is None else set()
    verdict = ("Exported against its limits (--accept-loss)", "bold yellow") if report.gate.was_accepted else _PASSED
    page: list[RenderableType] = [Text(*verdict), pairs(row for row in rows if row[0] not in left_out)]
    sections = _sections([*page, gate_table(report.gate), answers_table(report.gate)], (), report.notes)
    return Group(sections, commands("Next", (f"adaptft serve {shlex.quote(report.path)}",)))


def readable_pattern(pattern: str) -> str:
    r"""``re:.*\.mlp\.gate$`` as ``mlp.gate``."""
    return pattern.removeprefix("re:").removeprefix(r".*\.").removesuffix("$").replace("\\", "").replace("d+", "*")


def _host_memory(plan: ExportPlan) -> str:
    return f"about {format_bytes(plan.predicted_host_bytes)} of host memory"


def _predicted(plan: ExportPlan) -> str:
    return "" if plan.predicted_seconds is None else f"about {format_seconds(plan.predicted_seconds)} "


def _time(report: ExportReport) -> str:
    said = format_seconds(report.seconds)
    if report.predicted_seconds is not None:
        said += f" ({format_seconds(report.predicted_seconds)} predicted)"
    if report.peak_host_bytes is not None:
        said += f"; at most {format_bytes(report.peak_host_bytes)} of host memory"
        said += f" ({format_bytes(report.predicted_host_bytes)} predicted)" if report.predicted_host_bytes else ""
    return said


def _page(
    title: Text, rows: Iterable[tuple[str, str]], warnings: Iterable[str], notes: Iterable[str]
) -> RenderableType:
    return _sections([title, pairs(rows)], warnings, notes)


def _sections(parts: Iterable[RenderableType], warnings: Iterable[str], notes: Iterable[str]) -> RenderableType:
    sections, warnings, notes = list(parts), tuple(warnings), tuple(notes)
    sections += [remarks(warnings, mark="!")] if warnings else []
    sections += [remarks(notes)] if notes else []
    return Group(*(Padding(section, (0, 0, 1, 0)) for section in sections))
