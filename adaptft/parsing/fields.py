"""The fields of a request as options: what kind of value each takes. Read from the dataclass, once."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from adaptft.requests import is_option

ValueKind = Literal["bool", "int", "float", "text", "word", "list"]

_KINDS: dict[Any, ValueKind] = {bool: "bool", int: "int", float: "float", str: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionField:
    """One option of a request; ``choices`` are the values of a ``Literal``, empty for other kinds."""

    name: str
    kind: ValueKind
    choices: tuple[Any, ...]
    optional: bool
    """True where None is a value of the field."""
    default: Any
    help: str
    group: str

    @property
    def required(self) -> bool:
        """True where the field has no default."""
        return self.default is dataclasses.MISSING

    @property
    def words(self) -> tuple[str, ...]:
        """The choices as people write them."""
        return tuple(str(choice) for choice in self.choices)


def option_fields(kind: type[Any]) -> Mapping[str, OptionField]:
    """The options of the request class ``kind`` by name, in the order of the class."""
    return _read_fields(cast(Hashable, kind))


@cache
def _read_fields(kind: Hashable) -> Mapping[str, OptionField]:
    assert isinstance(kind, type)
    assert dataclasses.is_dataclass(kind)
    hints = get_type_hints(kind)
    return {f.name: _option_field(f, hints[f.name]) for f in dataclasses.fields(kind) if is_option(f)}


def _option_field(field: dataclasses.Field[Any], annotation: Any) -> OptionField:
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    (member,) = [m for m in members if m is not type(None)]
    origin = get_origin(member)
    kind: ValueKind = "word" if origin is Literal else "list" if origin is tuple else _KINDS[member]
    return OptionField(
        name=field.name,
        kind=kind,
        choices=get_args(member) if origin is Literal else (),
        optional=type(None) in members,
        default=field.default,
        help=field.metadata["help"],
        group=field.metadata["group"],
    )
