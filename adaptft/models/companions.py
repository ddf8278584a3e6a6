"""The files beside the weights of a result: tokenizer, chat template, generation config."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from adaptft.models.folders import read_folder_config, read_optional
from adaptft.models.tokenizers import end_of_turn_ids, load_tokenizer

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
_TOKENIZER_PATTERNS = ("*.tiktoken", "tokenization_*.py")
_GENERATION = "generation_config.json"
_FROM_CONFIG = ("bos_token_id", "eos_token_id", "pad_token_id")


def save_companions(
    source: Path, target: Path, *, extra_eos: tuple[int, ...] | None = None, base: Path | None = None
) -> tuple[str, ...]:
    """Copy the tokenizer's files of the model in ``source`` to ``target`` and write a generation config.

    The files are copied, not saved anew: transformers 5 writes some in a form that servers on transformers 4
    cannot read. The generation config keeps every field of the source's; ``eos_token_id`` gains the ids that end
    a turn, since servers stop at these alone.

    Args:
        extra_eos: ids that end a turn; by default found by rendering the chat template.
        base: the model to take the generation config of where ``source`` has none (an adapter of another program).

    Returns:
        What was changed and why, in words; empty where nothing was.
    """
    target.mkdir(parents=True, exist_ok=True)
    names = [*_TOKENIZER_FILES, *(path.name for pattern in _TOKENIZER_PATTERNS for path in source.glob(pattern))]
    for name in names:
        if (source / name).is_file() and source.resolve() != target.resolve():
            shutil.copyfile(source / name, target / name)
    _write_template(target)
    tokenizer = load_tokenizer(source)
    wanted = end_of_turn_ids(tokenizer) if extra_eos is None else extra_eos
    settings = _generation_settings(source if base is None or (source / _GENERATION).is_file() else base)
    stops = _as_list(settings.get("eos_token_id"))
    added = [index for index in wanted if index not in stops]
    if stops or added:
        settings["eos_token_id"] = stops + added if len(stops + added) > 1 else (stops + added)[0]
    _write_json(target / _GENERATION, settings)
    return tuple(
        f"added {index} {tokenizer.convert_ids_to_tokens(index)} to eos_token_id "
        "because the chat template ends turns with it"
        for index in added
    )


def _write_template(folder: Path) -> None:
    """Give a template that stands in tokenizer_config.json its own file too: newer servers look there."""
    settings, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    if template.is_file() or not settings.is_file():
        return
    inline = read_optional(settings).get("chat_template")
    if isinstance(inline, list):  # several, by name
        inline = next((item["template"] for item in inline if item.get("name") == "default"), None)
    if inline:
        template.write_text(inline, encoding="utf-8")


def _generation_settings(source: Path) -> dict[str, Any]:
    """The source's generation config; where it has none, the token ids of its config.json."""
    path = source / _GENERATION
    if path.is_file():
        return read_optional(path)
    config = read_folder_config(source)
    return {key: config[key] for key in _FROM_CONFIG if config.get(key) is not None}


def _as_list(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return list(ids) if isinstance(ids, list) else [ids]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
