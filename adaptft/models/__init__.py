"""Finding, converting and loading models. Nothing heavy is imported until a function needs it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptft.models.companions import save_companions
    from adaptft.models.identity import fingerprint
    from adaptft.models.loading import load_for_inference
    from adaptft.models.locating import LocalModel, locate, read_config
    from adaptft.models.planned import load_for_training
    from adaptft.models.tokenizers import end_of_turn_ids, load_tokenizer

__all__ = [
    "LocalModel",
    "end_of_turn_ids",
    "fingerprint",
    "load_for_inference",
    "load_for_training",
    "load_tokenizer",
    "locate",
    "read_config",
    "save_companions",
]

_PLACES = {
    "fingerprint": "identity",
    "LocalModel": "locating",
    "locate": "locating",
    "read_config": "locating",
    "load_for_inference": "loading",
    "load_for_training": "planned",
    "load_tokenizer": "tokenizers",
    "end_of_turn_ids": "tokenizers",
    "save_companions": "companions",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'adaptft.models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"adaptft.models.{_PLACES[name]}"), name)
