"""What of a model is on this machine already; no network is asked."""

from __future__ import annotations

from pathlib import Path

from adaptft.models import catalog
from adaptft.models.folders import has_tokenizer
from adaptft.models.locating import locate, packaged_gguf
from adaptft.requests import Hub

_FILES = ("tokenizer.json", "tokenizer_config.json")


def tokenizer_here(model: str, *, hub: Hub | None = None, revision: str | None = None) -> Path | None:
    """The folder that holds the tokenizer of ``model``: a model folder, or one in the Hugging Face cache.

    A model that an installed package brings is converted on the first call (seconds). GGUF files, models in
    ModelScope's cache and folders without tokenizer files (a config.json is enough for a plan) give None.

    Raises:
        ModelError, OutputError: the packaged model cannot be converted.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder if has_tokenizer(folder) else None
    if hub is None and packaged_gguf(model) is not None:
        return locate(model).path
    if hub == "modelscope" or folder.is_file():
        return None
    entry = catalog.find(model)
    return _in_cache(entry.id_on("hf") if entry is not None else model, revision)


def _in_cache(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = [try_to_load_from_cache(repo, name, revision=revision) for name in _FILES]
        paths = [path for path in found if isinstance(path, str)]
    except HFValidationError:  # not of the form of an id: reading the config says so
        return None
    return Path(paths[0]).parent if len(paths) == len(_FILES) else None
