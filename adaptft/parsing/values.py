"""Words to typed values, by the kind of the field they are for.

``None`` and, where the field's default is None, ``none``, ``null`` and ``auto`` mean "you decide".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from adaptft.parsing.fields import OptionField
from adaptft.parsing.given import Given
from adaptft.parsing.lists import read_list
from adaptft.parsing.nearest import did_you_mean
from adaptft.parsing.ranges import check_range

YOU_DECIDE: Final = object()
"""What ``read_value`` gives for a key that was written and leaves the decision to adaptft."""

BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
NONE = frozenset({"none", "null", "~"})

_NEVER = dict.fromkeys(("off", "false", "never", "none", "0"), "no")
_STRATEGY = _NEVER | {"step": "steps", "epochs": "epoch"}
_HUB = {"huggingface": "hf", "hugging_face": "hf", "ms": "modelscope"}

# field -> word in lower case -> the word of the field; other spellings of the same thing
WORDS: dict[str, dict[str, str]] = {
    "torch_dtype": {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"},
    "attn_impl": {"torch": "sdpa", "disabled": "eager"},
    "eval_strategy": _STRATEGY,
    "save_strategy": _STRATEGY,
    "hub": _HUB,
    "device": {"gpu": "cuda"},
    "strategy": {"zero3": "fsdp2", "fsdp": "fsdp2", "full_shard": "fsdp2", "shard_grad_op": "zero2", "zero0": "ddp"},
    "optim": dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf"), "adamw")
    | dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit_bnb"), "adamw_8bit")
    | {"paged_adamw_8bit_bnb": "paged_adamw_8bit"},
    "format": {"autoawq": "awq", "autogptq": "gptq", "gptqmodel": "gptq", "merge": "merged", "w8a8": "int8",
               "fp8_block": "fp8-block", "fp8-dynamic": "fp8"},
    "infer_backend": dict.fromkeys(("huggingface", "hf", "pt"), "transformers"),
    "quant_bits": {"4bit": "4", "4.0": "4"},
}  # fmt: skip

FAST_KERNEL = "adaptft takes its own variable-length kernel wherever the GPU, the type and the model allow it"
# wishes that leave the decision to adaptft: field -> words, and the note that says so
_FLASH = ("flash_attn", "flash_attention", "flash_attention_2", "flash_attention_3", "fa2", "fa3", "flash")
WISHES: dict[str, dict[str, str]] = {"attn_impl": dict.fromkeys(_FLASH, FAST_KERNEL)}

# what adaptft has that comes nearest to a word it does not know
_PAGED = "Nearest: paged_adamw_8bit (paged too, states in 8 bit), or adamw (states in 32 bit)."
_LEAN = "Nearest: adamw_8bit (states in a quarter of the memory)."
_NEAREST: dict[str, tuple[tuple[str, str], ...]] = {
    "optim": (("paged", _PAGED), ("adafactor", _LEAN), ("galore", _LEAN), ("apollo", _LEAN), ("8bit", _LEAN),
              ("4bit", _LEAN), ("", "Nearest: adamw.")),
    "lr_scheduler_type": (("cosine", "Nearest: cosine."), ("warmup", "Nearest: constant_with_warmup."),
                          ("polynomial", "Nearest: linear.")),
    "format": (("gguf", "adaptft writes no GGUF: no maintained package converts. Take --format merged and then "
                "llama.cpp's convert_hf_to_gguf.py."),),
}  # fmt: skip

# text in which every word is somebody's own, so that "none" is not special
FREE_TEXT = frozenset({"system", "prompt", "api_key", "served_model_name", "model"})
PATHS = frozenset({"model", "output_dir", "resume_from_checkpoint", "adapters", "vllm_python", "output"})
# transformers writes "no limit of its own" as -1
MINUS_ONE_DECIDES = frozenset({"max_steps"})
# explicitly not quantised: None, and yet said by the user
NOT_QUANTISED = frozenset({"0", "16", "false", "no", "off"})


def read_value(field: OptionField, given: Given) -> Any:
    """The value of ``field`` that ``given`` writes, or ``YOU_DECIDE``.

    Raises:
        RequestError: it cannot be meant; names the key, the value and what is allowed.
    """
    if given.raw is None:
        return YOU_DECIDE
    if field.name == "resume_from_checkpoint":
        return _read_resume(given)
    if field.name == "columns" and given.word not in NONE:
        return _read_columns(given)
    if given.word.replace("-", "_") in WISHES.get(field.name, {}):
        return YOU_DECIDE
    if field.name == "quant_bits" and given.word in NOT_QUANTISED:
        return None
    if field.name not in FREE_TEXT and not isinstance(given.raw, (list, tuple, dict)):
        if field.optional and given.word in NONE:
            return YOU_DECIDE if field.default is None else None
        if given.word == "auto" and (field.optional or field.kind in ("int", "float")):
            return YOU_DECIDE
        if given.word == "-1" and field.name in MINUS_ONE_DECIDES:
            return YOU_DECIDE
    return read_list(field.name, given) if field.kind == "list" else _READERS[field.kind](field, _scalar(field, given))


def read_bool(given: Given, *, auto: bool = False) -> bool:
    """One of the eight words, in any case, quoted or not.

    Raises:
        RequestError: another word; names the words allowed.
    """
    if given.word not in BOOLEANS:
        words = "true or false (also yes/no, on/off, 1/0" + (", or auto to let adaptft decide)" if auto else ")")
        raise given.wrong("is neither true nor false", fix=f"Write {words}.")
    return BOOLEANS[given.word]


def _scalar(field: OptionField, given: Given) -> Given:
    """One value: a list of one is that one; several, or a mapping, cannot be meant."""
    raw = given.raw
    if isinstance(raw, (list, tuple)) and len(raw) == 1:
        return given.with_raw(raw[0])
    if isinstance(raw, (list, tuple, dict)):
        raise given.wrong("is not a single value", fix=f"Write one value for {field.name}.")
    return given


def _read_bool(field: OptionField, given: Given) -> bool:
    return read_bool(given, auto=field.optional)


def _read_int(field: OptionField, given: Given) -> int:
    number = _number(given)
    if number is None or not float(number).is_integer():
        fix = f"Write {field.name} as digits, such as 16."
        if re.fullmatch(r"[\d.]+k", given.word):
            fix = "Write the digits: k may be 1000 or 1024."
        raise given.wrong("is not a whole number", fix=fix)
    check_range(field.name, number, given)
    return int(number)


def _read_float(field: OptionField, given: Given) -> float:
    number = _number(given)
    if number is None:
        fix = "Write it as 0.1 or 1e-1."
        raise given.wrong("is not a number", fix=fix)
    check_range(field.name, number, given)
    return float(number)


def _number(given: Given) -> int | float | None:
    """A finite number; booleans, hexadecimals, percentages and decimal commas are none."""
    if isinstance(given.raw, bool):
        return None
    text = given.text
    if re.fullmatch(r"[+-]?\d(_?\d)*", text, re.ASCII):
        return int(text)
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text.lower(), re.ASCII):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def _read_text(field: OptionField, given: Given) -> str:
    if isinstance(given.raw, bool):
        raise given.wrong("is not text", fix=f"Write a text for {field.name}.")
    text = str(given.raw) if field.name in FREE_TEXT - PATHS else given.text
    if not text and field.name != "system":
        raise given.wrong("is empty", fix=f"Write a value for {field.name}, or leave it out.")
    return _expand_home(field.name, text)


def _read_word(field: OptionField, given: Given) -> Any:
    word = given.word.removeprefix("torch.") if field.name == "torch_dtype" else given.word
    synonyms = WORDS.get(field.name, {})
    wanted = synonyms.get(word, synonyms.get(word.replace("-", "_"), word.replace("-", "_")))
    for choice, name in zip(field.choices, field.words, strict=True):
        if wanted == name:
            return choice
    allowed = f"Allowed: {_listed(field.words + (('auto',) if field.optional else ()))}."
    near = next((fix for part, fix in _NEAREST.get(field.name, ()) if part in wanted), None)
    fix = f"{near} {allowed}" if near else did_you_mean(given.word, field.words, allowed)
    raise given.wrong("is not a choice", fix=fix)


def _read_resume(given: Given) -> Any:
    """``auto`` or ``true`` is the newest checkpoint; ``false`` and ``none`` start anew; else a folder."""
    if given.word in ("auto", "true", "yes", "on", "latest"):
        return "auto"
    if given.word in NONE or given.word in ("false", "no", "off"):
        return YOU_DECIDE
    if isinstance(given.raw, (list, tuple, dict)) or not given.text:
        raise given.wrong("is not a folder", fix="Write auto, or a checkpoint folder.")
    return _expand_home("resume_from_checkpoint", given.text)


def _read_columns(given: Given) -> str:
    """A mapping, or JSON that holds one, as JSON: the same mapping is the same text."""
    names = given.raw
    try:
        names = json.loads(given.text) if isinstance(names, str) else names
    except ValueError:
        names = None
    if not isinstance(names, dict) or not names or not all(isinstance(n, str) and n for n in names.values()):
        raise given.wrong("is no mapping of column names", fix='Write {"q": "query", "a": "response"}.')
    return json.dumps({str(own): name for own, name in names.items()}, ensure_ascii=False, sort_keys=True)


def _expand_home(name: str, text: str) -> str:
    return str(Path(text).expanduser()) if name in PATHS and text.startswith("~/") else text


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words[:-1]) + f" or {words[-1]}" if len(words) > 1 else words[0]


_READERS: dict[str, Callable[[OptionField, Given], Any]] = {
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "text": _read_text,
    "word": _read_word,
}
