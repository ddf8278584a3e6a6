"""The export's README.md: a model card that says what was done, how far it is from its source, and how to serve it."""

from __future__ import annotations

from pathlib import Path

from adaptft import __version__
from adaptft.exporting.sources import ExportSource
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS
from adaptft.reports import AnswerPair, ExportReport, GateLine, MergeReport
from adaptft.units import format_bytes, format_number

_CARD = """\
---
base_model: {base}
library_name: transformers
pipeline_tag: text-generation
tags:
- adaptft
- {format}
---
# {name}
{title}, exported by adaptft {version} as **{format}**: {format_title}.

Loaded back and compared with its source on {checked_on} ({tokens} tokens):

| | source | this export | limit |
|---|---|---|---|
| weights | {source_bytes} | {exported_bytes} | |
{lines}
{accepted}
KL is that of the next-token distributions, source against export, in nats a token.

Greedy answers:
{answers}
- {compressed} of {linears} linear layers are compressed, {bits:.2f} bits a weight with scales.{ignored}
{merged}- Calibration: {calibration}.
- Served by {servable_on}. Kernels: {kernels}.
- Written with {versions}.
{notes}
## Serve
```
adaptft serve {folder}
vllm serve {folder}
```
"""


def write_card(folder: Path, name: str, plan: ExportPlan, source: ExportSource, report: ExportReport) -> None:
    """Write ``folder/README.md``; ``name`` is the folder's name once it is in its place."""
    facts, gate = FORMATS[plan.format], report.gate
    ignored = f" In 16 bit: {', '.join(f'`{pattern}`' for pattern in plan.ignored_modules)}."
    text = _CARD.format(
        base=source.base.name,
        format=plan.format,
        name=name,
        title=source.title,
        version=__version__,
        format_title=facts.title,
        source_bytes=format_bytes(report.source_bytes),
        exported_bytes=format_bytes(report.exported_bytes),
        lines="".join(map(_line, gate.lines)),
        accepted="\n**Over its limits, and kept by --accept-loss.**\n" if gate.was_accepted else "",
        answers="".join(map(_answer, gate.answers)),
        tokens=gate.fidelity.num_tokens,
        merged=_merged(report.merge),
        compressed=report.num_quantized_modules,
        linears=report.num_linear_modules,
        bits=report.bits_per_weight,
        ignored=ignored if plan.ignored_modules else "",
        checked_on=gate.rows,
        calibration=report.calibration,
        servable_on=facts.servable_on,
        kernels=facts.kernels,
        versions=", ".join(f"{package} {version}" for package, version in report.versions.items()),
        notes="".join(f"- {note}\n" for note in report.notes),
        folder=name,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _line(line: GateLine) -> str:
    source = "" if line.source is None else format_number(line.source)
    mark = "" if line.passes else " (**over**)"
    limit = f"{line.rule} {format_number(line.limit)}"
    return f"| {line.measure} | {source} | {format_number(line.export)}{mark} | {limit} |\n"


def _answer(pair: AnswerPair) -> str:
    texts = (("asked", pair.prompt), ("source", pair.source), ("export", pair.export))
    return "".join(f"- {name}: {' '.join(text.split())}\n" for name, text in texts) + "\n"


def _merged(merge: MergeReport | None) -> str:
    if merge is None:
        return ""
    said = f"- The adapter was merged into the {merge.base} base: "
    said += f"KL {format_number(merge.parity.divergence)} to the adapter beside its base as it was trained"
    if merge.rejected_parity is not None:
        said += f"; into the other candidate it would be {format_number(merge.rejected_parity.divergence)}"
    return f"{said}.\n"
