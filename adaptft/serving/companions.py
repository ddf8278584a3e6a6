"""Stop tokens and chat templates of a base and its adapters, joined into what one server can take.

vLLM has one chat template and one list of stop tokens for all the models of a server. The list is
``eos_token_id`` of the generation_config.json in its ``--generation-config`` folder
(``--override-generation-config`` changes sampling only: vLLM 0.32, ``config/model.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adaptft.errors import OutputError
from adaptft.facts import AdapterShape
from adaptft.home import cache_folder
from adaptft.models.folders import read_optional
from adaptft.models.stopping import named_stop_ids
from adaptft.records import write_json

CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"


def stop_token_folder(base: Path, adapters: Iterable[AdapterShape]) -> str | None:
    """A folder whose generation_config.json stops the base and every adapter; None where the base's does.

    Where no adapter's own file holds all stop tokens, a joined one is written into the cache.
    """
    adapters = tuple(adapters)
    own = named_stop_ids(base)
    wanted = set(own).union(*(adapter.eos_token_ids for adapter in adapters))
    if wanted == set(own):
        return None
    whole = next((adapter.path for adapter in adapters if set(adapter.eos_token_ids) == wanted), None)
    return whole or str(_write_joined(read_optional(base / GENERATION_CONFIG) | {"eos_token_id": sorted(wanted)}))


def answers_greedily(folder: Path) -> bool:
    """True where generation_config.json says so; without it transformers' word and the engines' differ."""
    return read_optional(folder / GENERATION_CONFIG).get("do_sample") is False


def common_template(base: Path, adapters: Iterable[AdapterShape]) -> tuple[str | None, tuple[str, ...]]:
    """A template file that replaces the base's (None: it has the adapters' already), and notes for people."""
    adapters = tuple(adapters)
    found = {adapter.name: base_template(Path(adapter.path)) for adapter in adapters}
    texts = {name: text for name, text in found.items() if text}
    own = base_template(base)
    if not texts or set(texts.values()) == {own}:
        return None, ()
    first = next(name for name, text in texts.items() if text != own)
    others = [name for name, text in texts.items() if text != texts[first]]
    file = next(adapter.chat_template for adapter in adapters if adapter.name == first)
    file = file or str(_cached(CHAT_TEMPLATE, texts[first]) / CHAT_TEMPLATE)
    if not others:
        return file, ()
    note = f"The chat template of {first} is used for all; trained with another one: {', '.join(others)}."
    return file, (note,)


def base_template(folder: Path) -> str | None:
    """The chat template of a model or adapter folder, from its file or from tokenizer_config.json.

    Of several templates under names, an older form, the one called default counts.
    """
    path = folder / CHAT_TEMPLATE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_optional(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _write_joined(config: dict[str, Any]) -> Path:
    return _cached(GENERATION_CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")


def _cached(name: str, text: str) -> Path:
    """A folder of the cache that holds ``text`` as the file ``name``; the same text is in the same one."""
    folder = cache_folder("generation", hashlib.sha256(text.encode()).hexdigest()[:16])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / name, text)
    except OSError as cause:
        raise OutputError(
            f"Cannot write {name} to {folder}: {cause.strerror}.",
            fix="Set ADAPTFT_HOME to a folder that you may write to.",
        ) from cause
    return folder
