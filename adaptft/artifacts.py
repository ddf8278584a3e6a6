"""Result folders: adaptft.json says what a folder holds and where it came from. Nothing else knows its form."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from adaptft.errors import OutputError
from adaptft.records import read_json, write_json

FILE_NAME = "adaptft.json"
ArtifactKind = Literal["adapter", "model", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A finished result. ``base_model`` is what the user named, ``base_path`` the folder it resolved to.

    ``base_fingerprint`` is a hash of the base's config and weight sizes: a guard against merging an
    adapter into another model.
    """

    kind: ArtifactKind
    adaptft: str
    base_model: str
    base_path: str
    base_fingerprint: str
    train_type: str | None = None
    format: str | None = None
    dataset: tuple[str, ...] = ()
    system: str | None = None
    max_length: int | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)


def write_artifact(folder: Path, artifact: Artifact) -> None:
    """Write ``folder/adaptft.json``."""
    write_json(folder / FILE_NAME, artifact)


def read_artifact(folder: Path) -> Artifact | None:
    """What ``folder`` says of itself, None where it has no adaptft.json.

    Raises:
        OutputError: the file is there and cannot be understood.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return None
    return read_json(
        Artifact, path, error=OutputError, what="result description",
        fix="Delete the file to use the folder as an ordinary model folder.",
    )  # fmt: skip
