"""Cells of rows as texts and objects: every odd form that people write, decided in one place."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from adaptft.data.conversation import BadRow

Row = dict[str, Any]
ONLY_TEXT = "only text can be trained"
TOO_DEEP = "JSON nested too deeply"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) and any(found[key] != value for key, value in pairs):
        raise BadRow("a key twice in one object, with different values")
    return found


JSON = json.JSONDecoder(object_pairs_hook=_object)
"""Reads JSON; where a key stands twice with different values, nobody can say which is meant: ``BadRow``."""


def is_missing(value: Any) -> bool:
    """True for what stands for "no value": absent, null, NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def as_text(value: Any, what: str) -> str:
    """A cell as text: numbers and booleans as JSON writes them, text parts joined by a newline, null as "".

    Args:
        what: name of the cell in the reason of a rejection ("answer").

    Raises:
        BadRow: an image or another object, a lone surrogate or a NUL character.
    """
    if is_missing(value):
        return ""
    if isinstance(value, str):
        return _checked(value, what)
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, dict) and "text" in value:
        value = [value]
    if isinstance(value, list):
        return "\n".join(_part_text(part, what) for part in value)
    raise BadRow(f"{what} is {_kind(value)}, not text")


def _part_text(part: Any, what: str) -> str:
    if isinstance(part, str):
        return _checked(part, what)
    if isinstance(part, dict) and part.get("type", "text") in ("text", "input_text", "output_text"):
        return as_text(part.get("text"), what)
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str):
        raise BadRow(f"{what} has a part of type {kind[:40]}; {ONLY_TEXT}")
    raise BadRow(f"{what} is a list of something other than text parts")


def _checked(text: str, what: str) -> str:
    if text.isascii():
        if "\0" in text:
            raise BadRow(f"{what} has a NUL character (is the file UTF-16, or damaged?)")
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{what} has half of a surrogate pair (a cut emoji)") from None
    if "\0" in text:
        raise BadRow(f"{what} has a NUL character (is the file UTF-16, or damaged?)")
    return text


def check_texts(value: Any, what: str) -> Any:
    """``value``, with every text inside it checked as ``as_text`` does.

    Raises:
        BadRow: a lone surrogate or a NUL character somewhere in it.
    """
    if isinstance(value, str):
        _checked(value, what)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _checked(str(key), what)
            check_texts(inner, what)
    elif isinstance(value, list):
        for inner in value:
            check_texts(inner, what)
    return value


def as_content(value: Any, what: str) -> str:
    """As ``as_text``, but objects become JSON: the results of tools are often objects."""
    is_part = isinstance(value, dict) and value.get("type") == "text"
    is_parts = isinstance(value, list) and value and all(isinstance(p, dict) and "type" in p for p in value)
    if isinstance(value, (dict, list)) and not is_part and not is_parts:
        return json.dumps(check_texts(value, what), ensure_ascii=False, default=str)
    return as_text(value, what)


def parse_json(text: str) -> Any:
    """JSON within limits.

    Raises:
        ValueError: not JSON, or nested deeper than the parser goes.
    """
    try:
        return JSON.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def as_list(value: Any, what: str) -> list[Any]:
    """A cell that holds a list, perhaps as JSON text (spreadsheets, LLaMA-Factory's tools); null and "" are empty.

    Raises:
        BadRow: it holds something else.
    """
    if is_missing(value):
        return []
    if isinstance(value, str):
        if not value.strip():
            return []
        try:
            value = parse_json(value)
        except ValueError:
            raise BadRow(f"{what} is text, not a list") from None
        if value is None:
            return []
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise BadRow(f"{what} is {_kind(value)}, not a list")
    return value


def as_arguments(value: Any) -> dict[str, Any]:
    """Arguments of a call as an object: given as one, as JSON text (even twice encoded), as "" or null.

    Raises:
        BadRow: text that is not JSON, or JSON that is not an object.
    """
    for _ in range(3):
        if is_missing(value):
            return {}
        if isinstance(value, dict):
            return dict(check_texts(value, "tool call"))
        if not isinstance(value, str):
            break
        if not value.strip():
            return {}
        try:
            value = _STRICT_JSON.decode(value)
        except (ValueError, RecursionError):
            raise BadRow("tool call with arguments that are not JSON") from None
    raise BadRow("tool call with arguments that are not an object")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_STRICT_JSON = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number", str: "text"}
    return kinds.get(type(value), f"of type {type(value).__name__}")
