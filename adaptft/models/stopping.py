"""Where an answer ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.models.folders import read_optional
from adaptft.models.tokenizers import end_of_turn_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def stop_token_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids that end an answer: the generation config's, the tokenizer's own, and what ends a turn in the template.

    A base model that was tuned on chats often names only the end of a document in its configs, and would
    play the user as well.
    """
    named = generation_config.eos_token_id
    ids = list(named) if isinstance(named, list) else [] if named is None else [named]
    ids += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return list(dict.fromkeys([*ids, *end_of_turn_ids(tokenizer)]))


def named_stop_ids(folder: Path) -> tuple[int, ...]:
    """Ids that ``folder``'s generation_config.json names as the end; nothing is loaded."""
    ids = read_optional(folder / "generation_config.json").get("eos_token_id")
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)
