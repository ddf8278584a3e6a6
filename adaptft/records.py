"""Frozen values to JSON and back; msgspec does the work and the checking."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from adaptft.errors import AdaptftError

T = TypeVar("T")


def to_dict(value: Any) -> dict[str, Any]:
    """A frozen value as plain dicts and lists; its derived numbers (properties) are added.

    The properties make files such as plan.json whole for other readers; ``from_dict`` ignores them.
    """
    return _plain(value)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        derived = {n: getattr(value, n) for n, p in vars(type(value)).items() if isinstance(p, property)}
        return fields | derived
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def from_dict(kind: type[T], data: Any) -> T:
    """Plain dicts and lists as a value of ``kind``, checked field by field.

    Raises:
        msgspec.ValidationError: a field is missing or of another type; the message names it.
    """
    return msgspec.convert(data, kind, strict=False)


def dumps(value: Any) -> str:
    """A frozen value as indented JSON."""
    return json.dumps(to_dict(value), indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON so that a reader sees the old file or the new one, never a part."""
    text = value if isinstance(value, str) else dumps(value)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def load_json(path: Path) -> Any:
    """The JSON value in ``path``.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is not UTF-8, not JSON, or nested too deeply.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path, *, error: type[AdaptftError], fix: str) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        AdaptftError: of class ``error``: the file cannot be read, or holds something else.
    """
    try:
        value = load_json(path)
    except (OSError, ValueError) as cause:
        raise error(f"Cannot read {path}: {_words(cause)}.", fix=fix) from cause
    if not isinstance(value, dict):
        raise error(f"{path} holds no JSON object.", fix=fix)
    return value


def _words(cause: Exception) -> str:
    return (cause.strerror if isinstance(cause, OSError) else None) or str(cause)


def read_json(kind: type[T], path: Path, *, error: type[AdaptftError], what: str, fix: str) -> T:
    """Read ``path`` as a value of ``kind``.

    Args:
        error: class of the error to raise; ``what`` names the file's role in its message.

    Raises:
        AdaptftError: of class ``error``: the file is missing, is not JSON or has another form.
    """
    try:
        return from_dict(kind, load_json(path))
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"Cannot read the {what} {path}: {_words(cause)}.", fix=fix) from cause
    except ValueError as cause:  # msgspec's errors of form are ValueErrors too
        raise error(f"{path} is not a {what}: {cause}.", fix=fix) from cause
