"""Short names for well-known models, with the facts of their config.json, so that plans work offline.

catalog.json holds one line a model: family, Hugging Face id, ModelScope id (null: the same), the five sizes in
``_SIZES``, and what departs from the family.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from adaptft.requests import Hub
from adaptft.shapes import FAMILIES

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A well-known model; ``config`` has the fields of config.json that decide its shape."""

    alias: str
    huggingface_id: str
    modelscope_id: str
    config: dict[str, Any]

    def id_on(self, hub: Hub) -> str:
        """Its id on ``hub``."""
        return self.modelscope_id if hub == "modelscope" else self.huggingface_id


def find(model: str) -> CatalogEntry | None:
    """The entry of an alias (in any case) or of a hub id, None for any other text."""
    return _names().get(model.lower())


def aliases() -> tuple[str, ...]:
    """Every alias, sorted."""
    return tuple(sorted(name for name in _names() if "/" not in name))


def nearest(model: str) -> str | None:
    """The alias most like ``model``, None where none is like it."""
    return next(iter(get_close_matches(model.lower(), aliases(), n=1, cutoff=0.5)), None)


@cache
def _names() -> dict[str, CatalogEntry]:
    """Alias or hub id, in lower case, to entry."""
    data = json.loads(files("adaptft.models").joinpath("catalog.json").read_text(encoding="utf-8"))
    names: dict[str, CatalogEntry] = {}
    for alias, (family, huggingface_id, modelscope_id, sizes, departures) in data["models"].items():
        facts = data["families"][family]
        entry = CatalogEntry(
            alias=alias,
            huggingface_id=huggingface_id,
            modelscope_id=modelscope_id or huggingface_id,
            config={
                "architectures": [FAMILIES[facts["model_type"]].architecture],
                "torch_dtype": "bfloat16",
                **facts,
                **dict(zip(_SIZES, sizes, strict=True)),
                **departures,
            },
        )
        names |= dict.fromkeys((alias, entry.huggingface_id.lower(), entry.modelscope_id.lower()), entry)
    return names | {alias: names[target] for alias, target in data["aliases"].items()}
