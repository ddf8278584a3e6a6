"""CSV files through Python's csv module: every cell is a text, "None", "N/A", "NULL" and "007" included."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from adaptft.data.conversation import BadRow
from adaptft.data.detection import speaks
from adaptft.data.streams import LONGEST_ROW, TOO_LONG, bounded_lines, open_text
from adaptft.errors import DataError

DELIMITERS = (",", ";", "\t", "|")
_SEPARATOR_LINE = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)


def csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers (from 1, the header not counted); rows of another width come as a ``BadRow``.

    The separator is the one that makes the header known columns. Names of columns are taken without
    surrounding space and in lower case. A byte-order mark and line breaks inside cells are as a
    spreadsheet writes them.

    Raises:
        DataError: a column twice, quoting that does not close, or text that is not in its encoding.
    """
    csv.field_size_limit(LONGEST_ROW)
    with open_text(path) as stream:
        lines = _lines(stream, path)
        first = next(lines, "")
        separator = _SEPARATOR_LINE.fullmatch(first)
        yield from _rows(lines if separator else chain([first], lines), separator[1] if separator else None, path)


def _lines(stream: TextIO, path: Path) -> Iterator[str]:
    for number, line in bounded_lines(stream.readline):
        if line is None:
            raise DataError(f"{path} has {TOO_LONG}, line {number}.", fix="Mend or delete that line.")
        yield line


def _rows(lines: Iterator[str], separator: str | None, path: Path) -> Iterator[tuple[int, Any]]:
    head = _header_lines(lines)
    delimiter = separator or _delimiter(head)
    reader = csv.reader(chain(head, lines), delimiter=delimiter, strict=True)
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        _refuse_doubles(names, path)
        number = 0
        for cells in reader:
            number += bool(cells)
            if any(cells):  # a row of empty cells is what a spreadsheet leaves below its data
                yield number, _row(names, cells)
    except csv.Error as cause:
        raise DataError(
            f"{path} is broken CSV: {cause}, line {reader.line_num + (separator is not None)}.",
            fix='Double the quotation marks inside quoted cells ("") and close the last one.',
        ) from cause


def _header_lines(lines: Iterator[str]) -> list[str]:
    """The lines of the header, without blank ones before it: several where a quoted name holds a line break."""
    head: list[str] = []
    for line in lines:
        if not head and not line.strip():
            continue
        head.append(line)
        if "".join(head).count('"') % 2 == 0:
            break
    return head


def _delimiter(head: list[str]) -> str:
    """The separator under which the header has known columns; else the one that gives most columns."""
    headers = {mark: next(csv.reader(head, delimiter=mark), []) for mark in DELIMITERS}
    known = [mark for mark, names in headers.items() if speaks(name.strip().lower() for name in names)]
    return max(known or DELIMITERS, key=lambda mark: len(headers[mark]))


def _refuse_doubles(names: list[str], path: Path) -> None:
    doubles = [name for name, count in Counter(names).items() if count > 1 and name]
    if doubles:
        raise DataError(
            f"{path} has more than one column named {', '.join(doubles)}.",
            fix="Rename or delete all but one of them: which one holds the text cannot be guessed.",
        )


def _row(names: list[str], cells: list[str]) -> dict[str, str] | BadRow:
    if any(cells[len(names) :]):
        return BadRow("more cells than the header has columns")
    cells = cells + [""] * (len(names) - len(cells))
    return {name: cell for name, cell in zip(names, cells, strict=False) if name}
