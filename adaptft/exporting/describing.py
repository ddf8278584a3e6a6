"""What an export says of itself: plan.json, report.json, README.md and adaptft.json."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from adaptft import __version__
from adaptft.artifacts import Artifact, write_artifact
from adaptft.exporting.cards import write_card
from adaptft.exporting.sources import ExportSource
from adaptft.plans import ExportPlan
from adaptft.records import write_json
from adaptft.reports import ExportReport

_PACKAGES = ("torch", "transformers", "peft", "llmcompressor", "compressed-tensors", "bitsandbytes")


def describe(partial: Path, name: str, plan: ExportPlan, source: ExportSource, report: ExportReport) -> None:
    """Write all four files into ``partial``; ``name`` is the folder's name once it is in its place."""
    known = source.artifact
    artifact = Artifact(
        kind="export",
        adaptft=__version__,
        base_model=known.base_model if known else source.base.name,
        base_path=str(source.base.path),
        base_fingerprint=source.base_fingerprint,
        train_type=known.train_type if known else None,
        format=plan.format,
        dataset=source.dataset,
        system=known.system if known else None,
        columns=known.columns if known else None,
        max_length=known.max_length if known else None,
        notes=report.notes,
    )
    write_json(partial / "plan.json", plan)
    write_json(partial / "report.json", report)
    write_card(partial, name, plan, source, report)
    write_artifact(partial, artifact)


def versions() -> dict[str, str]:
    """Installed versions of the packages that shape an export."""
    installed = {package: _version(package) for package in _PACKAGES}
    return {package: version for package, version in installed.items() if version is not None}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
