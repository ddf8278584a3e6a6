"""Columns that the user gives other names: ``{"q": "query", "a": "response"}``, as ms-swift has it."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace

from adaptft.data.detection import Dialect, column_names
from adaptft.data.sources import Source
from adaptft.errors import DataError


def rename_columns(sources: tuple[Source, ...], columns: str | None) -> tuple[Source, ...]:
    """``sources`` with the names of ``columns`` (JSON), which win over registered ones.

    Raises:
        DataError: no mapping of texts, or a name that no form of rows knows.
    """
    names = _read(columns)
    if not names:
        return sources
    renames = {name: own for own, name in names.items()}
    return tuple(replace(source, renames=source.renames | renames) for source in sources)


def check_renamed(columns: str | None, dialects: list[Dialect]) -> None:
    """Stop where a renamed column is in no source, or is not used there: a slip would go unseen.

    Raises:
        DataError: names the column, and those that there are.
    """
    used = {own for dialect in dialects for own in dialect.columns.values()}
    for own, name in _read(columns).items():
        if own not in used:
            there = sorted({key for dialect in dialects for key in (*dialect.columns.values(), *dialect.ignored)})
            lacks = own not in there
            raise DataError(
                f"columns names {own}, which the data lacks."
                if lacks
                else f"columns maps {own} to {name}, and no rows use it so.",
                fix=f"The columns are {', '.join(there)}; map a question and an answer, such as query and response.",
            )


def _read(columns: str | None) -> dict[str, str]:
    try:
        names = json.loads(columns) if columns else {}
    except ValueError:
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise DataError(f"columns is no mapping of names: {columns}.", fix='Write {"q": "query", "a": "response"}.')
    for name in names.values():
        if name not in column_names():
            near = difflib.get_close_matches(name, column_names(), 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise DataError(
                f"columns maps to {name}, which no form of rows has.",
                fix=f"{hint}Known: {', '.join(known for known in column_names() if known.isascii())}.",
            )
    return names
