"""Options and a recipe to a request. Options beat the recipe; what neither says is left to the policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from adaptft.errors import RequestError
from adaptft.parsing.combining import COMBINED, combine
from adaptft.parsing.faults import Faults
from adaptft.parsing.fields import option_fields
from adaptft.parsing.given import Given, on_command_line
from adaptft.parsing.meanings import meanings
from adaptft.parsing.names import SYNONYMS, canonical, fold, synonyms
from adaptft.parsing.nearest import nearest
from adaptft.parsing.recipes import read_recipe
from adaptft.parsing.values import WISHES, YOU_DECIDE, read_value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """A request, the fields that the user set (an explicit default among them), and notes for the user."""

    request: T
    given: frozenset[str]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Value:
    value: Any
    given: Given


def parse_request(
    kind: type[T], options: Mapping[str, Any], recipe: Path | None = None, *, also: Iterable[str] = ()
) -> Parsed[T]:
    """A request of class ``kind`` from ``options`` and from the YAML file ``recipe``.

    Args:
        options: values as text or as Python values; names may be synonyms, with ``-`` or ``_``.
        also: a command's own options, to name where an unknown one is near.

    Raises:
        RequestError: an unknown key, a value that cannot be meant, keys that contradict each other,
            or a required field that nobody set. One error names all that is wrong.
    """
    notes: list[str] = []
    values: dict[str, _Value] = {}
    faults = Faults()
    layers = [] if recipe is None else [read_recipe(recipe)]
    for layer in (*layers, {key: on_command_line(key, raw) for key, raw in options.items()}):
        values |= _read_layer(kind, layer, notes, faults, tuple(also))
    with faults.collected():
        _settle_quantization(values, notes)
    faults.raise_any()
    decided = {name: v.value for name, v in values.items() if v.value is not YOU_DECIDE}
    _check_required(kind, decided)
    given = frozenset(decided)
    if "given" in {f.name for f in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        decided["given"] = tuple(sorted(given))
    return Parsed(kind(**decided), given, tuple(dict.fromkeys(notes)))


def known_keys(kind: type[Any]) -> tuple[str, ...]:
    """Every key that ``parse_request`` accepts for ``kind``, fields first."""
    return tuple(
        dict.fromkeys([*option_fields(kind), *synonyms(kind), *meanings(kind), *COMBINED.get(kind.__name__, ())])
    )


def unknown_key(key: str, kind: type[Any], *, where: str, prefix: str = "", also: Iterable[str] = ()) -> RequestError:
    """The error for a key that nobody knows; names the nearest that somebody does (``also``: a command's own)."""
    found = nearest(fold(key), [*option_fields(kind), *map(fold, also)], cutoff=0.7) or nearest(
        fold(key), known_keys(kind)
    )
    hint = f"Did you mean {prefix}{found}?" if found else "adaptft COMMAND --help lists them all."
    return RequestError(f"{prefix}{key} is not a known option{f' ({where})' if where else ''}.", fix=hint)


def _read_layer(
    kind: type[Any], layer: Mapping[str, Given], notes: list[str], faults: Faults, also: tuple[str, ...]
) -> dict[str, _Value]:
    """The values of one source, typed; two keys for one field must agree."""
    values: dict[str, _Value] = {}
    fields = option_fields(kind)
    for name, given in _translate(kind, layer, notes, faults, also):
        with faults.collected():
            value = read_value(fields[name], given)
            before = values.get(name)
            if before is not None and before.value != value and YOU_DECIDE not in (before.value, value):
                raise given.wrong(f"contradicts {before.given.label}", fix=f"Keep one of the two: both set {name}.")
            if before is None or before.value is YOU_DECIDE:
                values[name] = _Value(value, given)
            if given.raw is None and fields[name].default not in (None, ()):
                notes.append(f"{given.label.split(':')[0]} has no value: left at its default.")
            elif wish := WISHES.get(name, {}).get(given.word.replace("-", "_")):
                notes.append(f"{given.label} is a wish: {wish}.")
    return values


def _translate(
    kind: type[Any], layer: Mapping[str, Given], notes: list[str], faults: Faults, also: tuple[str, ...]
) -> list[tuple[str, Given]]:
    """Keys as written to fields of ours."""
    known, together = meanings(kind), COMBINED.get(kind.__name__, ())
    pairs: list[tuple[str, Given]] = []
    combined: dict[str, Given] = {}
    for key, given in layer.items():
        name, meaning = canonical(key, kind), known.get(fold(key)) or known.get(_any_field(key))
        if name is not None:
            pairs.append((name, given))
        elif fold(key) in together:
            combined[fold(key)] = given
        elif meaning is None:
            prefix = "--" if given.label.startswith("--") else ""
            faults.add(unknown_key(key, kind, where=given.where, prefix=prefix, also=also if prefix else ()))
        elif given.raw is not None:
            with faults.collected():
                effect = meaning.read(given)
                pairs.extend((name, given.with_raw(raw)) for name, raw in effect.sets.items())
                if effect.note:
                    notes.append(f"{given.label} changes nothing: {effect.note}.")
    with faults.collected():
        return combine(pairs, combined, notes)
    return []


def _any_field(key: str) -> str:
    return next((name for name, others in SYNONYMS.items() if fold(key) in others), "")


def _settle_quantization(values: dict[str, _Value], notes: list[str]) -> None:
    """``lora`` on a 4-bit base is what adaptft calls ``qlora``; other frameworks spell it in two keys."""
    bits, train_type = values.get("quant_bits"), values.get("train_type")
    if bits is None or bits.value is YOU_DECIDE or "format" in values:
        return
    wanted = train_type.value if train_type and train_type.value is not YOU_DECIDE else None
    if bits.value == 4 and wanted == "full":
        raise bits.given.wrong("contradicts train_type full", fix="Write train_type qlora, or leave the 4 bits out.")
    if bits.value is None and wanted == "qlora":
        raise bits.given.wrong("contradicts train_type qlora", fix="Write train_type lora, or leave it out.")
    if bits.value == 4 and wanted != "qlora":
        values["train_type"] = _Value("qlora", bits.given)
        notes.append(f"{bits.given.label}: adapters on a 4-bit base, which is train_type qlora.")


def _check_required(kind: type[Any], decided: Mapping[str, Any]) -> None:
    for name, field in option_fields(kind).items():
        if field.required and name not in decided:
            raise RequestError(f"No {name} is given.", fix=f"Add --{name}: {field.help}")
