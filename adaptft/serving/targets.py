"""What is served: a request's names looked up on disk, as facts for the policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from adaptft.artifacts import adapter_base, is_adapter, read_artifact
from adaptft.errors import RequestError, ServeError
from adaptft.facts import AdapterShape, Machine, ModelShape, ServedModel
from adaptft.models import locate, read_config
from adaptft.models.adapter_shapes import check_shapes, read_adapter
from adaptft.models.bases import locate_base
from adaptft.models.catalog import find
from adaptft.models.folders import read_optional
from adaptft.plans import ServePlan
from adaptft.policy.endpoints import plan_serving
from adaptft.requests import ServeRequest
from adaptft.serving.companions import answers_greedily, base_template, common_template, stop_token_folder
from adaptft.serving.engines import find_engines
from adaptft.serving.tool_parsers import tool_parser
from adaptft.shapes import model_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model to serve: its shape and what lies on disk."""

    model: ModelShape
    served: ServedModel


def find_target(request: ServeRequest, *, must_start: bool) -> Target:
    """Look up the model and the adapters of ``request``; an adapter folder as the model brings its base along.

    Args:
        must_start: find or download the weights; else the configuration is enough, to show a plan.

    Raises:
        ModelError: no such model, or an adapter that cannot be read.
        ServeError: an adapter of another model.
    """
    folders = parse_adapters(request.adapters)
    base_name, name = request.model, request.served_model_name or request.model
    if is_adapter(Path(request.model)):
        folders = {name: Path(request.model), **folders}
        base_name = name = _base_name(Path(request.model))
    adapters = tuple(read_adapter(name, folder) for name, folder in folders.items())
    path = _model_path(request, base_name, adapters, must_start=must_start)
    model = model_shape(read_config(str(path), hub=request.hub, revision=None), base_name)
    for adapter in adapters:
        check_shapes(adapter, model)
    artifact = read_artifact(Path(path))
    template, notes = common_template(Path(path), adapters)
    generation_config = stop_token_folder(Path(path), adapters)
    return Target(
        model=model,
        served=ServedModel(
            model_path=path,
            name=name,
            adapters=adapters,
            file_bytes=_weight_bytes(Path(path)),
            export_format=artifact.format if artifact else None,
            generation_config=generation_config,
            is_greedy=answers_greedily(Path(generation_config or path)),
            chat_template=template,
            tool_parser=tool_parser(_text(template) or base_template(Path(path))),
            has_kv_scales=_has_kv_scales(Path(path)),
            notes=notes,
        ),
    )


def parse_adapters(texts: tuple[str, ...]) -> dict[str, Path]:
    """``name=DIR`` or ``DIR`` (named after the folder) to folders by name.

    Raises:
        RequestError: two adapters of one name, or a part is missing.
    """
    folders: dict[str, Path] = {}
    for text in texts:
        name, separator, folder = text.partition("=")
        if not separator or Path(text).is_dir():
            name, folder = Path(text).absolute().name, text
        if not name or not folder:
            raise RequestError(f"--adapters {text} is no NAME=DIR.", fix="Example: --adapters math=output/my-run")
        if name in folders:
            raise RequestError(
                f"Two adapters are called {name}.", fix="Give each its own name: --adapters NAME=DIR NAME=DIR"
            )
        folders[name] = Path(folder)
    return folders


def _base_name(folder: Path) -> str:
    base = adapter_base(folder)
    if base is None:
        raise ServeError(
            f"The adapter in {folder} does not say which model it belongs to.",
            fix=f"Name both: adaptft serve MODEL --adapters NAME={folder}",
        )
    return base


def _model_path(request: ServeRequest, base_name: str, adapters: Iterable[AdapterShape], *, must_start: bool) -> str:
    """The model's folder; for a plan that is only shown, a hub id or a folder without weights will do."""
    folder = Path(base_name)
    if not must_start and not _has_weights(folder):
        if folder.is_dir():
            return str(folder.absolute())
        entry = find(base_name)
        return entry.id_on(request.hub or "hf") if entry else base_name
    hub, trust = request.hub, request.trust_remote_code
    for adapter in adapters:
        locate_base(Path(adapter.path), base_name, hub=hub, trust_remote_code=trust, error=ServeError)
    return str(locate(base_name, hub=hub, trust_remote_code=trust, allow_quantized=True).path.absolute())


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def _weight_bytes(folder: Path) -> int | None:
    """Size of the weight files; None where they are not here yet."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def _text(file: str | None) -> str | None:
    return Path(file).read_text(encoding="utf-8") if file else None


def _has_kv_scales(folder: Path) -> bool:
    """True where the checkpoint was calibrated for an FP8 KV cache."""
    config = read_optional(folder / "config.json")
    return bool((config.get("quantization_config") or {}).get("kv_cache_scheme"))


def plan_endpoint(
    request: ServeRequest, machine: Machine, *, must_start: bool = True, is_recorded: bool = False
) -> ServePlan:
    """Look up what ``request`` names and which engines are here, and plan the endpoint.

    Args:
        must_start: the plan will be started; else it is only shown, and weights and engine may be missing.
        is_recorded: ``machine`` is another one, of which it is not known what is installed.

    Raises:
        AdaptftError: as ``find_engines``, ``find_target`` and ``plan_serving`` do.
    """
    engines = None if is_recorded else find_engines(request.vllm_python)
    target = find_target(request, must_start=must_start)
    return plan_serving(
        machine, target.model, request, served=target.served, engines=engines, must_start=must_start
    )  # fmt: skip
