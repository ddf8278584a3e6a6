"""The export's README.md: a model card that says what was done, how far it is from its source, and how to serve it."""

from __future__ import annotations

from pathlib import Path

from adaptft import __version__
from adaptft.exporting.sources import ExportSource
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS
from adaptft.reports import ExportReport
from adaptft.units import format_bytes

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

| | source | this export |
|---|---|---|
| weights | {source_bytes} | {exported_bytes} |
| loss on {checked_on} (nats a token) | {source_loss} | {exported_loss} |

- {compressed} of {linears} linear layers are compressed, {bits:.2f} bits a weight with scales.{ignored}
- Calibration: {calibration}.
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
    facts = FORMATS[plan.format]
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
        source_loss=_loss(report.source_loss),
        exported_loss=_loss(report.exported_loss),
        compressed=report.num_quantized_modules,
        linears=report.num_linear_modules,
        bits=report.bits_per_weight,
        ignored=ignored if plan.ignored_modules else "",
        checked_on=report.checked_on,
        calibration=report.calibration,
        servable_on=facts.servable_on,
        kernels=facts.kernels,
        versions=", ".join(f"{package} {version}" for package, version in report.versions.items()),
        notes="".join(f"- {note}\n" for note in report.notes),
        folder=name,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _loss(loss: float | None) -> str:
    return "not measured" if loss is None else f"{loss:.4f}"
