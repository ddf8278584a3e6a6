"""Result folders: adaptft.json says what a folder holds and where it came from. Nothing else knows its form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from adaptft.errors import AdaptftError, ModelError, OutputError
from adaptft.plans import TrainPlan
from adaptft.records import read_json, read_object, to_dict, write_json

FILE_NAME = "adaptft.json"
ADAPTER_CONFIG = "adapter_config.json"
ArtifactKind = Literal["adapter", "model", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A finished result. ``base_model`` is what the user named, ``base_path`` the folder it resolved to.

    ``base_fingerprint`` is a hash of the base's config and weight sizes: a guard against merging an
    adapter into another model. ``columns`` are the names that the columns of ``dataset`` were given.
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
    columns: str | None = None
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


def is_adapter(folder: Path) -> bool:
    """True for a folder that holds a PEFT adapter, whoever wrote it."""
    return (folder / ADAPTER_CONFIG).is_file()


def check_adapter(
    folder: Path, *, error: type[AdaptftError] = ModelError, otherwise: str = "a complete model needs no --adapters"
) -> None:
    """Refuse what is no adapter folder, before anything is fetched or loaded.

    Args:
        otherwise: what to do with a complete model instead.

    Raises:
        AdaptftError: of class ``error``: there is no such folder, or no adapter in it.
    """
    if is_adapter(folder):
        return
    if not folder.is_dir():
        parent = folder.absolute().parent
        names = [path.name for path in parent.iterdir() if is_adapter(path)] if parent.is_dir() else []
        near = get_close_matches(folder.name, names, 1)
        hint = f"Did you mean {folder.parent / near[0]}?" if near else "Give the folder that `adaptft train` wrote."
        raise error(f"There is no folder {folder}.", fix=hint)
    raise error(
        f"{folder} holds no adapter (no {ADAPTER_CONFIG}).",
        fix=f"Give the folder that `adaptft train` wrote; {otherwise}.",
    )


def adapter_base(folder: Path) -> str | None:
    """The base model that the adapter in ``folder`` was trained on: a folder that is still there, or a name.

    Raises:
        OutputError: adapter_config.json cannot be read.
    """
    artifact = read_artifact(folder)
    if artifact is not None:
        return artifact.base_path if Path(artifact.base_path).is_dir() else artifact.base_model
    fix = "Give the folder that training wrote, or train the adapter again."
    base = read_object(folder / ADAPTER_CONFIG, error=OutputError, fix=fix).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None


def plan_text(plan: TrainPlan) -> str:
    """plan.json, as ``adaptft plan --json`` prints it: the version and the verdict come first."""
    from adaptft import __version__

    return json.dumps({"adaptft": __version__, "fits": plan.fits} | to_dict(plan), indent=2, ensure_ascii=False) + "\n"
