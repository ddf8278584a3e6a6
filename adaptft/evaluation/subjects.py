"""What is evaluated: the models that a request names, each with its folder and its adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adaptft.artifacts import check_adapter, is_adapter, read_artifact
from adaptft.errors import ModelError
from adaptft.models import LocalModel, locate
from adaptft.models.bases import locate_base
from adaptft.requests import EvalRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to score: a complete folder, and the adapter that is put on it."""

    name: str
    path: Path
    adapters: Path | None = None

    @property
    def shown_path(self) -> Path:
        """The folder that makes this subject what it is."""
        return self.adapters or self.path

    @property
    def tokenizer_folder(self) -> Path:
        """The adapter's own tokenizer and template where it has them."""
        own = self.adapters is not None and (self.adapters / "tokenizer_config.json").is_file()
        return self.shown_path if own else self.path


def find_subjects(request: EvalRequest) -> tuple[Subject, ...]:
    """The base first, then adapters, then exports, in the order of the request; no folder twice.

    A ``model`` that is an adapter folder means its base and the adapter.

    Raises:
        ModelError: a model is not found, an adapter belongs to another base, or a folder is not what its
            option asks for.
    """
    model, adapters = request.model, list(request.adapters)
    for folder in adapters:
        check_adapter(Path(folder), otherwise="a complete model goes to --exports")
    for folder in request.exports:
        if not Path(folder).is_dir():
            raise ModelError(f"There is no folder {folder}.", fix="Give the folder that `adaptft export` wrote.")
    if is_adapter(Path(model)):
        adapters.insert(0, model)
        base = locate_base(Path(model), hub=request.hub, trust_remote_code=request.trust_remote_code)
        name = base.name
    else:
        base = _locate(model, request)
        name = model
    subjects = [Subject(name=name, path=base.path)]
    subjects += [_adapter(folder, base.path, request) for folder in adapters]
    subjects += [_export(folder, request) for folder in request.exports]
    return tuple({subject.shown_path.resolve(): subject for subject in subjects}.values())


def recorded_system(subjects: tuple[Subject, ...]) -> str | None:
    """The system prompt all results among ``subjects`` were trained with; None where they differ or have none."""
    artifacts = [artifact for subject in subjects if (artifact := read_artifact(subject.shown_path)) is not None]
    systems = {artifact.system for artifact in artifacts}
    return systems.pop() if len(systems) == 1 else None


def _adapter(folder: str, base: Path, request: EvalRequest) -> Subject:
    path = Path(folder)
    locate_base(path, str(base), trust_remote_code=request.trust_remote_code)
    return Subject(name=folder, path=base, adapters=path)


def _export(folder: str, request: EvalRequest) -> Subject:
    path = Path(folder)
    if is_adapter(path):
        raise ModelError(f"{folder} holds an adapter, not an export.", fix=f"Use --adapters {folder}.")
    return Subject(name=folder, path=_locate(folder, request).path)


def _locate(model: str, request: EvalRequest) -> LocalModel:
    return locate(model, hub=request.hub, trust_remote_code=request.trust_remote_code, allow_quantized=True)
