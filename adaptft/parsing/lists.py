"""Lists: from a YAML list, repeated options, comma text, blank-separated text, or JSON in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from adaptft.parsing.given import Given
from adaptft.parsing.nearest import did_you_mean
from adaptft.parsing.recipes import read_flow

NOTHING = frozenset({"none", "null", "no", "off", "false", "[]"})
REPORTERS = ("tensorboard", "wandb", "swanlab", "mlflow")

_NAMES = re.compile(r"[\w.\-]+(?:[,\s]+[\w.\-]+)*,?")
_HUB_ID = re.compile(r"(?:(?:hf|ms)::)?\w[\w.\-]*/\w[\w.\-]*(?:[:#].*)?")


def read_list(name: str, given: Given) -> tuple[str, ...]:
    """The list field ``name`` as a tuple; an element that holds several is taken apart.

    Raises:
        RequestError: an element is empty or is not text, the list is empty where that means nothing,
            or a word is not among those that the field knows.
    """
    split = _SPLITTERS.get(name, _split_paths)
    elements = tuple(part for element in _elements(given) for part in split(element))
    if any(not part for part in elements):
        raise given.wrong("names nothing", fix=f"Write a value after {name}, or leave it out.")
    finish = _FINISHERS.get(name)
    return finish(elements, given) if finish else _expand_home(elements)


def _elements(given: Given) -> Iterable[str]:
    raw = given.raw
    raw = _unwrap(given.text) if isinstance(raw, str) else raw
    elements = raw if isinstance(raw, (list, tuple)) else [raw]
    for element in elements:
        inner = _unwrap(element.strip()) if isinstance(element, str) else element
        for part in inner if isinstance(inner, list) and isinstance(element, str) else [inner]:
            if isinstance(part, (dict, list, bool)) or part is None:
                raise given.wrong("is not a list of words", fix="Write [a, b], or a,b.")
            yield str(part).strip()


def _unwrap(text: str) -> Any:
    """``'["a", "b"]'`` as a list; any other text as it is."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    try:
        return read_flow(text)
    except yaml.YAMLError:
        return text


def _split_names(text: str) -> list[str]:
    """Names apart at commas and blanks; a regex (any other character) stays whole, commas and all."""
    return re.split(r"[,\s]+", text.strip(", ")) if _NAMES.fullmatch(text) else [text]


def _split_paths(text: str) -> list[str]:
    """Paths and hub ids apart at commas, at blanks only where each part is one; an existing file stays whole."""
    if Path(text).expanduser().exists():
        return [text]
    if "," in text:
        return [part.strip() for part in text.split(",") if part.strip()]
    parts = text.split()
    return parts if parts and all(_is_source(part) for part in parts) else [text]


def _is_source(text: str) -> bool:
    path = text.rsplit("#", 1)[0]
    return Path(path).expanduser().exists() or bool(_HUB_ID.fullmatch(text))


def _expand_home(elements: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(Path(e).expanduser()) if e.startswith("~/") else e for e in elements)


def _sources(elements: tuple[str, ...], given: Given) -> tuple[str, ...]:
    if not elements:
        raise given.wrong("names no data", fix="Name files, folders or hub ids, or leave it out.")
    return _expand_home(elements)


def _optional_sources(elements: tuple[str, ...], given: Given) -> tuple[str, ...]:
    return () if _is_nothing(elements) else _expand_home(elements)


def _target_modules(elements: tuple[str, ...], given: Given) -> tuple[str, ...]:
    if not elements:
        raise given.wrong("names no module", fix="Write all-linear, names such as q_proj,v_proj, or one regex.")
    return tuple("all-linear" if e.lower().replace("_", "-") in ("all", "all-linear") else e for e in elements)


def _modules_to_save(elements: tuple[str, ...], given: Given) -> tuple[str, ...]:
    return () if _is_nothing(elements) else elements


def _report_to(elements: tuple[str, ...], given: Given) -> tuple[str, ...]:
    words = tuple(e.lower() for e in elements)
    if _is_nothing(words):
        return ()
    if words == ("all",):
        return words
    for word in words:
        if word not in REPORTERS:
            raise given.wrong(
                f"names no reporter called {word}",
                fix=did_you_mean(word, REPORTERS, f"Allowed: {', '.join(REPORTERS)}, all or none."),
            )
    return tuple(dict.fromkeys(words))


def _is_nothing(elements: tuple[str, ...]) -> bool:
    return len(elements) == 0 or (len(elements) == 1 and elements[0].lower() in NOTHING)


_SPLITTERS: dict[str, Callable[[str], list[str]]] = {
    "target_modules": _split_names,
    "modules_to_save": _split_names,
    "report_to": _split_names,
}
_FINISHERS: dict[str, Callable[[tuple[str, ...], Given], tuple[str, ...]]] = {
    "dataset": _sources,
    "val_dataset": _optional_sources,
    "target_modules": _target_modules,
    "modules_to_save": _modules_to_save,
    "report_to": _report_to,
}
