"""Checks of a local model folder: what it holds, and whether all of it is there."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from adaptft.artifacts import adapter_base, read_artifact
from adaptft.errors import ModelError
from adaptft.records import read_object

INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "*.tiktoken", "tekken.json")
_GIT_LFS = b"version https://git-lfs"
_COPY = "Copy or download the model again."


def read_folder_config(folder: Path) -> dict[str, Any]:
    """config.json of ``folder``.

    Raises:
        ModelError: it is missing (the message says what the folder holds instead) or is not JSON.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise _without_config(folder)
    return read_object(path, error=ModelError, fix=_COPY)


def read_optional(path: Path) -> dict[str, Any]:
    """One of the small JSON files beside the weights; empty where it is not there.

    Raises:
        ModelError: it is there and cannot be read.
    """
    return read_object(path, error=ModelError, fix=_COPY) if path.is_file() else {}


def check_folder(folder: Path) -> None:
    """Check that ``folder`` holds config, whole safetensors weights, a tokenizer and no broken generation config.

    Raises:
        ModelError: something is missing, cut short, or kept in pickles only.
    """
    read_folder_config(folder)
    for name in _weight_names(folder):
        _check_safetensors(folder / name)
    check_tokenizer_files(folder)
    read_optional(folder / "generation_config.json")  # a result needs it: better now than after the training


def has_tokenizer(folder: Path) -> bool:
    """True where ``folder`` holds the files of a tokenizer."""
    return any(any(folder.glob(pattern)) for pattern in _TOKENIZERS)


def check_tokenizer_files(folder: Path) -> None:
    """Check that ``folder`` holds a tokenizer: without one, transformers makes an empty one and says nothing.

    Raises:
        ModelError: there is none.
    """
    if not has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer (no {', '.join(_TOKENIZERS[:3])}).",
            fix="Copy the tokenizer files of the model that it was made from into the folder.",
        )


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that hold the weights, sorted by name."""
    return tuple(folder / name for name in _weight_names(folder))


def _weight_names(folder: Path) -> list[str]:
    index = folder / INDEX
    if not index.is_file():
        if names := sorted(path.name for path in folder.glob("*.safetensors")):
            return names
        raise _without_weights(folder)
    try:
        names = sorted({str(name) for name in read_object(index, error=ModelError, fix=_COPY)["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as cause:
        raise ModelError(f"{index} is broken: {cause!r}.", fix=_COPY) from cause
    if elsewhere := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise ModelError(f"{index} names files outside its folder: {', '.join(elsewhere)}.", fix=_COPY)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files that its index names: {', '.join(missing)}.",
            fix="Copy or download the missing files; a download that was stopped can be run again.",
        )
    return names


def _check_safetensors(path: Path) -> None:
    """Compare the file's size with the one its header implies.

    Form: 8 bytes with the header's length, the header (JSON, ``data_offsets`` of each tensor), the data.
    """
    with path.open("rb") as stream:
        start = stream.read(8)
        if _GIT_LFS.startswith(start) and start:
            raise ModelError(f"{path} is a Git LFS pointer and not the weights.", fix="Run: git lfs pull")
        try:
            (length,) = struct.unpack("<Q", start)
            size = path.stat().st_size
            header = json.loads(stream.read(length) if length < size else b"")
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
            raise ModelError(f"{path} is not a safetensors file.", fix="Copy or download it again.") from cause
    wanted = 8 + length + max(ends, default=0)
    if size != wanted:
        raise ModelError(
            f"{path} is cut short: {size} bytes of {wanted}.",
            fix="Copy or download it again; a download that was stopped can be run again.",
        )


def _without_config(folder: Path) -> ModelError:
    if (folder / "adapter_config.json").is_file():
        return _adapter(folder)
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return ModelError(f"{folder} has no config.json.", fix=f"Name the GGUF file itself: --model {ggufs[0]}")
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        return ModelError(f"{folder} has no config.json.", fix=f"Name the model folder in it: --model {inner[-1]}")
    return ModelError(
        f"{folder} is no model folder: it has no config.json.",
        fix="Name a folder with config.json, *.safetensors and tokenizer.json, a GGUF file, a hub id or an alias.",
    )


def _adapter(folder: Path) -> ModelError:
    """What to do with an adapter that was handed over as a model."""
    artifact = read_artifact(folder)
    base = artifact.base_model if artifact is not None else adapter_base(folder) or "BASE"
    return ModelError(
        f"{folder} is an adapter of {base}, not a model.",
        fix=f"Use --model {base} --adapters {folder}, or merge it: adaptft export --format merged --adapters {folder}",
    )


def _without_weights(folder: Path) -> ModelError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        return ModelError(
            f"{folder} has a config.json and no weights (no *.safetensors).",
            fix="Copy or download the weights into the folder.",
        )
    return ModelError(
        f"{folder} keeps its weights in {pickles[0]}, a pickle, which can run any code when it is opened.",
        fix='If you trust it, convert it once: python -c "from transformers import AutoModelForCausalLM as M; '
        f"M.from_pretrained('{folder}', dtype='auto').save_pretrained('{folder}')\"",
    )
