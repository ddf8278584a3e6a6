"""Words of a command line to options and the rest, before click sees them.

Options of a request may be written ``--lora_rank 16``, ``--lora-rank=16``, ``--packing``, ``--packing false``,
``--dataset a b c`` or ``--dataset a --dataset b``. Their values stay text: ``adaptft.parsing`` reads them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from adaptft.errors import RequestError
from adaptft.parsing.fields import option_fields
from adaptft.parsing.names import canonical, fold
from adaptft.parsing.reading import known_keys
from adaptft.parsing.values import BOOLEANS, NONE

Takes = Literal["one", "many", "maybe"]
# ms-swift's names in self-cognition rows: one in Chinese, one in English
_SEVERAL_WORDS = frozenset({"model_name", "model_author"})
RECIPE_ENDINGS = (".yaml", ".yml")


@dataclass(slots=True)
class Arguments:
    """``options`` by the name as written (folded), ``rest`` for click: its own options and positionals."""

    options: dict[str, Any] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


def split_arguments(kind: type[Any], words: list[str], *, own: Iterable[str], recipe: bool) -> Arguments:
    """Take the options of the request class ``kind`` out of ``words``.

    Args:
        own: option names that are click's (``--json``, ``--machine``).
        recipe: True where a positional word can only be a recipe, so that a word after a switch is its value.

    Raises:
        RequestError: an option without its value.
    """
    found, known, own = Arguments(), set(known_keys(kind)), set(own)
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        key = fold(name)
        if word == "--":
            found.rest += queue
            break
        if not word.startswith("--") or name in own:
            found.rest.append(word)
        elif key not in known:  # reading the request refuses it, with all else that is wrong
            found.options[name.removeprefix("--")] = value if equals else " ".join(_words(queue))
        else:
            values = [value] if equals else _values(key, kind, queue, recipe=recipe)
            _store(found.options, key, kind, values)
    return found


def _values(key: str, kind: type[Any], queue: list[str], *, recipe: bool) -> list[str]:
    """The words after option ``key`` that belong to it, taken from ``queue``."""
    takes = _takes(key, kind)
    if takes == "maybe":
        return [queue.pop(0)] if queue and _is_switch_value(queue[0], recipe=recipe) else ["true"]
    if not queue or queue[0].startswith("--"):
        raise RequestError(f"--{key} has no value.", fix=f"Write one after it: --{key} VALUE")
    return [queue.pop(0), *(_words(queue) if takes == "many" else [])]


def _words(queue: list[str]) -> list[str]:
    """The words up to the next option or recipe, taken from ``queue``."""
    values: list[str] = []
    while queue and not queue[0].startswith("--") and not _is_recipe(queue[0]):
        values.append(queue.pop(0))
    return values


def _takes(key: str, kind: type[Any]) -> Takes:
    name = canonical(key, kind)
    if key in _SEVERAL_WORDS:
        return "many"
    if name is None:
        return "maybe"  # a key with a meaning of its own: a switch, or one word
    return {"bool": "maybe", "list": "many"}.get(option_fields(kind)[name].kind, "one")  # type: ignore[return-value]


def _is_switch_value(word: str, *, recipe: bool) -> bool:
    if recipe:
        return not word.startswith("--") and not _is_recipe(word)
    return word.lower() in BOOLEANS.keys() | NONE | {"auto"}


def _is_recipe(word: str) -> bool:
    return word.lower().endswith(RECIPE_ENDINGS)


def _store(options: dict[str, Any], key: str, kind: type[Any], values: list[str]) -> None:
    name = canonical(key, kind)
    if name is not None and option_fields(kind)[name].kind == "list":
        options.setdefault(key, []).extend(values)
    else:
        options[key] = " ".join(values) if key in _SEVERAL_WORDS else values[-1]
