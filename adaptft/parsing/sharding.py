"""DeepSpeed's and FSDP's keys as the strategies they stand for; offloading of weights is what adaptft does not do."""

from __future__ import annotations

import re
from pathlib import PurePath

from adaptft.parsing.effects import NOTHING, Effect, Meaning
from adaptft.parsing.given import Given
from adaptft.parsing.values import BOOLEANS, NONE

_STAGES = {"0": "ddp", "1": "zero2", "2": "zero2", "3": "fsdp2"}
_STAGE_1 = "ZeRO-1 becomes zero2, which shards the gradients as well"
_BY_NAME = re.compile(r"(?:^|[^a-z])z(?:ero)?[-_]?([0-3])(?![0-9])")
"""A stage in a name: ``zero2``, and the stock files ``ds_z3_config.json``, ``zero3_bf16.json``."""
_SHARDED = {
    "full_shard": "fsdp2", "fsdp2": "fsdp2", "fsdp": "fsdp2", "shard_grad_op": "zero2", "no_shard": "ddp",
    **{word: "fsdp2" for word, on in BOOLEANS.items() if on},
}  # fmt: skip
_WITHOUT_MEANING = frozenset({"auto_wrap"})
_OFF = NONE | {"", "[]", "{}"} | {word for word, on in BOOLEANS.items() if not on}
_FIX = "Write --strategy zero2 or fsdp2, or leave it out: adaptft decides where the model lives."
_KEEPS_WEIGHTS = "Leave offloading out: adaptft keeps weights on GPUs (activation_offloading is for activations)."


def _deepspeed(given: Given) -> Effect:
    """A stage's name, or a file that has the stage in its name."""
    if given.word in _OFF or given.raw == {}:
        return NOTHING
    name = PurePath(given.word).name if isinstance(given.raw, str) else ""
    found = _BY_NAME.search(name)
    if "offload" in name:
        raise given.wrong("is not supported", fix=_KEEPS_WEIGHTS)
    if found is None:
        raise given.wrong("does not say which stage", fix=_FIX)
    return Effect({"strategy": _STAGES[found[1]]}, note=_STAGE_1 if found[1] == "1" else "")


def _fsdp(given: Given) -> Effect:
    """``full_shard auto_wrap`` in a line or as a list, ``fsdp2``, or a switch."""
    if given.word in _OFF or given.raw in ([], {}):
        return NOTHING
    found = [str(word) for word in given.raw] if isinstance(given.raw, (list, tuple)) else given.word.split()
    said = [word.lower() for word in found if word.lower() not in _WITHOUT_MEANING]
    if "offload" in said:
        raise given.wrong("is not supported", fix=_KEEPS_WEIGHTS)
    meant = {_SHARDED.get(word) for word in said}
    if len(meant) != 1 or None in meant:
        raise given.wrong("is not supported", fix=_FIX)
    return Effect({"strategy": meant.pop()})


def _fsdp_config(given: Given) -> Effect:
    """What is in it adaptft decides itself, but for offloading, which it does not do."""
    if given.raw in (None, [], {}) or given.word in _OFF:
        return NOTHING
    entries = given.raw if isinstance(given.raw, dict) else {}
    if any("offload" in str(key) and BOOLEANS.get(str(value).lower(), True) for key, value in entries.items()):
        raise given.wrong("is not supported", fix=_KEEPS_WEIGHTS)
    return Effect(note="adaptft shards decoder layer by decoder layer with FSDP2")


DEEPSPEED = Meaning(_deepspeed, frozenset({"strategy"}))
FSDP = Meaning(_fsdp, frozenset({"strategy"}))
FSDP_CONFIG = Meaning(_fsdp_config)
