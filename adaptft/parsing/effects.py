"""What a key of another framework can do: set keys of ours, do nothing and say why, or be refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptft.parsing.given import Given
from adaptft.parsing.values import NONE, read_bool


@dataclass(frozen=True, slots=True)
class Effect:
    """What a key means: fields to set (values as text), and a line for the user."""

    sets: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a key is read, and the fields it can set."""

    read: Callable[[Given], Effect]
    targets: frozenset[str] = frozenset()


NOTHING = Effect()
_OFF = NONE | {"false", "no", "off", "0", "", "[]", "{}"}


def switch(*, true: Mapping[str, Any], false: Mapping[str, Any] | None = None) -> Meaning:
    """A switch that stands for values of ours; ``auto`` leaves the decision to adaptft."""
    if_false = false or {}

    def read(given: Given) -> Effect:
        if given.word in NONE | {"auto"}:
            return NOTHING
        return Effect(true if read_bool(given, auto=True) else if_false)

    return Meaning(read, frozenset(true) | frozenset(if_false))


def words(
    table: Mapping[str, Mapping[str, Any]], *, fix: str, notes: Mapping[str, str] | None = None
) -> Meaning:  # fmt: skip
    """A word that stands for values of ours (none: a note); any other is refused."""

    def read(given: Given) -> Effect:
        if given.word not in table:
            raise given.wrong("is not supported", fix=fix)
        return Effect(table[given.word], note=(notes or {}).get(given.word, ""))

    return Meaning(read, frozenset(name for sets in table.values() for name in sets))


def number(wanted: float, *, fix: str) -> Meaning:
    """A number that adaptft fixes; any other is refused."""

    def read(given: Given) -> Effect:
        try:
            same = float(given.text) == wanted
        except ValueError:
            same = False
        if not same:
            raise given.wrong("is not supported", fix=fix)
        return NOTHING

    return Meaning(read)


def harmless(note: str) -> Meaning:
    """A key without use here; the note says why."""
    return Meaning(lambda given: Effect(note=note))


def entries(*harmless_prefixes: str, note: str, fix: str) -> Meaning:
    """A list or mapping of which adaptft knows entries that change nothing; any other entry is refused."""

    def read(given: Given) -> Effect:
        found = given.raw if isinstance(given.raw, (list, tuple, dict)) else [given.text]
        if given.raw in ([], {}) or given.word in _OFF:
            return NOTHING
        if not all(str(entry).startswith(harmless_prefixes) for entry in found):
            raise given.wrong("is known, and not supported yet", fix=fix)
        return Effect(note=note)

    return Meaning(read)


def only(*allowed: str, fix: str, note: str = "") -> Meaning:
    """A key of which adaptft does what one or a few words ask for, and nothing else."""

    def read(given: Given) -> Effect:
        if given.word not in allowed:
            raise given.wrong("is not supported", fix=fix)
        return Effect(note=note)

    return Meaning(read)


def unsupported(fix: str) -> Meaning:
    """A key that is known and asks for what adaptft does not do; switched off it is harmless."""

    def read(given: Given) -> Effect:
        if given.raw in ([], {}) or given.word in _OFF:
            return NOTHING
        raise given.wrong("is known, and not supported yet", fix=fix)

    return Meaning(read)
