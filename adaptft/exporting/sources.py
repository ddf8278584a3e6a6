"""What is exported and to where: the base, the adapter, and a folder to write to that is free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adaptft.artifacts import Artifact, check_adapter, is_adapter, read_artifact
from adaptft.errors import ExportError, OutputError, RequestError
from adaptft.models import LocalModel, fingerprint, locate
from adaptft.models.bases import locate_base
from adaptft.plans import Method, TrainPlan
from adaptft.records import read_json
from adaptft.requests import ExportRequest
from adaptft.writable import check_folder

PLAN = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A base (or a complete model) and the adapter to merge into it."""

    base: LocalModel
    base_fingerprint: str
    adapters: Path | None
    artifact: Artifact | None
    """What the adapter, or the complete model, says of itself."""
    training: TrainPlan | None = None
    """The plan that it was trained by, where it is a result of ours."""

    @property
    def is_qlora(self) -> bool:
        """True for an adapter that was trained on an NF4 base, which is to be found again."""
        return self.adapters is not None and self.training is not None and self._method.train_type == "qlora"

    @property
    def is_fp8_trained(self) -> bool:
        """True for an adapter whose base multiplied in FP8 while it was trained."""
        return self.adapters is not None and self.training is not None and self._method.base_storage == "fp8"

    @property
    def _method(self) -> Method:
        return self.require_training().decisions.method.value

    def require_training(self) -> TrainPlan:
        """The training's plan of a source that is known to have one."""
        if self.training is None:
            raise ValueError("this source has no training plan")
        return self.training

    @property
    def dataset(self) -> tuple[str, ...]:
        """The training data, where it is known."""
        return self.artifact.dataset if self.artifact else ()

    @property
    def companions(self) -> Path:
        """The folder with the tokenizer to copy: the adapter's own where it has one."""
        if self.adapters is not None and (self.adapters / "tokenizer_config.json").is_file():
            return self.adapters
        return self.base.path

    @property
    def title(self) -> str:
        """The source in words."""
        return f"{self.base.name} with the adapter {self.adapters}" if self.adapters else self.base.name


def find_source(request: ExportRequest) -> ExportSource:
    """Find the model and the adapter that ``request`` names.

    An adapter folder given as the model is taken as the adapter.

    Raises:
        RequestError: neither a model nor an adapter is named.
        ExportError: the adapter's base is missing or another model, or the folder is an export already.
        ModelError: the model is not found.
    """
    model, folder = request.model, request.adapters
    if folder is None and model is not None and is_adapter(Path(model)):
        model, folder = None, model
    if folder is None:
        if model is None:
            raise RequestError(
                "Nothing to export: neither an adapter nor a model was named.",
                fix="Name a training's output folder: --adapters output/my-run (or a complete model: --model DIR).",
            )
        return _complete_model(request, model)
    adapters = Path(folder)
    check_adapter(adapters, error=ExportError, otherwise=f"a complete model goes to --model {folder}")
    base = locate_base(adapters, model, hub=request.hub, trust_remote_code=request.trust_remote_code, error=ExportError)
    artifact = read_artifact(adapters)
    return ExportSource(
        base=base, base_fingerprint=fingerprint(base.path), adapters=adapters, artifact=artifact,
        training=_training_plan(adapters, artifact),
    )  # fmt: skip


def _complete_model(request: ExportRequest, model: str) -> ExportSource:
    artifact = read_artifact(Path(model)) if Path(model).is_dir() else None
    is_copy = artifact is not None and artifact.kind == "export" and request.format == "merged"
    if artifact is not None and artifact.kind == "export" and (artifact.format != "merged" or is_copy):
        raise ExportError(
            f"{model} is an export already (format {artifact.format}).",
            fix=f"Export from its source: --model {artifact.base_model}, or the adapter with --adapters.",
        )
    base = locate(model, hub=request.hub, trust_remote_code=request.trust_remote_code)
    training = _training_plan(Path(model), artifact)
    return ExportSource(
        base=base, base_fingerprint=fingerprint(base.path), adapters=None, artifact=artifact, training=training
    )


def _training_plan(folder: Path, artifact: Artifact | None) -> TrainPlan | None:
    """The plan.json of a training's result; that of an export is another one."""
    path = folder / PLAN
    if artifact is None or artifact.kind == "export" or not path.is_file():
        return None
    return read_json(
        TrainPlan, path, error=ExportError, what="training plan",
        fix="Delete the file to export without it: the rows that training held out are then not known.",
    )  # fmt: skip


def output_folder(request: ExportRequest, source: ExportSource) -> Path:
    """The folder to write to, checked to be free or an export that may be replaced.

    Without ``output_dir``: beside the adapter or the model's folder, its name with the format added; for
    a model from a hub, in ``output/``.

    Raises:
        OutputError: something is there, or it is the source itself, or the parent cannot be written to.
    """
    folder = Path(request.output_dir) if request.output_dir else _default_folder(request, source)
    own = {path.resolve() for path in (source.adapters, source.base.path) if path is not None}
    if folder.resolve() in own or any(folder.resolve() in path.parents for path in own):
        raise OutputError(f"{folder} holds the model that is exported.", fix="Give another folder with --output_dir.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _check_replaceable(folder, request)
    check_folder(folder, option="--output_dir")
    return folder


def _default_folder(request: ExportRequest, source: ExportSource) -> Path:
    beside = source.adapters or (Path(request.model) if request.model and Path(request.model).is_dir() else None)
    if beside is not None:
        beside = beside.absolute()
        return beside.with_name(f"{beside.name}-{request.format}")
    return Path("output") / f"{source.base.name.replace('/', '--')}-{request.format}"


def _check_replaceable(folder: Path, request: ExportRequest) -> None:
    artifact = read_artifact(folder) if folder.is_dir() else None
    if artifact is None or artifact.kind != "export":
        raise OutputError(
            f"{folder} exists and is no export, so it is not replaced.",
            fix="Give another folder with --output_dir.",
        )
    if not request.overwrite_output_dir:
        raise OutputError(
            f"{folder} holds an export already (format {artifact.format}).",
            fix="Give another folder with --output_dir, or replace it with --overwrite_output_dir.",
        )
