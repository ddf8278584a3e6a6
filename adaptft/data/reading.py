"""Sources as numbered raw rows; parsing a JSON line is left to whoever tokenises it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from adaptft.data.arrow_files import arrow_rows, numbered, parquet_rows
from adaptft.data.conversation import BadRow
from adaptft.data.csv_files import csv_rows
from adaptft.data.detection import NUM_PROBED_ROWS, Dialect, detect
from adaptft.data.hub import load_table
from adaptft.data.json_files import is_json_list, json_lines, json_list, parse_line
from adaptft.data.sources import Source
from adaptft.data.streams import bare_suffix
from adaptft.data.text_files import has_paragraphs, text_rows
from adaptft.errors import DataError

Raw = Any
"""An undecoded line (bytes), a row (dict or any other JSON value), or a ``BadRow`` met while reading."""


def _json_rows(path: Path) -> Iterator[tuple[int, Raw]]:
    return json_list(path) if is_json_list(path) else json_lines(path)


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, Raw]]]] = {
    ".jsonl": _json_rows, ".ndjson": _json_rows, ".json": _json_rows, ".csv": csv_rows, ".tsv": csv_rows,
    ".parquet": parquet_rows, ".arrow": arrow_rows, ".txt": text_rows,
}  # fmt: skip


def raw_rows(source: Source) -> Iterator[tuple[int, Raw]]:
    """The source's rows with their numbers from 1: lines of .jsonl and .txt (where a row
    may be a paragraph, with the number of its first line), rows of everything else.

    Raises:
        DataError: it cannot be read.
    """
    if source.path is None:
        rows = numbered(load_table(source).with_format("arrow").iter(batch_size=512))
    else:
        rows = _READERS[bare_suffix(source.path)](source.path)
    return rows if source.limit is None else islice(rows, source.limit)


def counts_lines(source: Source) -> bool:
    """True where the numbers of rows are line numbers, False where they count rows."""
    path = source.path
    if path is None or bare_suffix(path) not in (".jsonl", ".ndjson", ".json", ".txt"):
        return False
    return bare_suffix(path) == ".txt" or not is_json_list(path)


def is_text(source: Source) -> bool:
    """True where the rows are plain text, without columns."""
    return source.path is not None and bare_suffix(source.path) == ".txt"


def parse(raw: Raw, *, text: bool) -> Any:
    """A raw row as a value.

    Raises:
        BadRow: a line that cannot be decoded, or a row that was bad already.
    """
    if isinstance(raw, BadRow):
        raise raw
    if not isinstance(raw, bytes):
        return raw
    if not text:
        return parse_line(raw)
    try:
        return {"text": raw.decode("utf-8").rstrip("\r\n")}
    except UnicodeDecodeError:
        raise BadRow("not UTF-8") from None


def detect_source(source: Source) -> Dialect:
    """The dialect of a source, from its first rows.

    Raises:
        DataError: no row at all, none that can be parsed, or unknown columns.
    """
    seen: list[Any] = []
    bad: list[str] = []
    for number, raw in islice(raw_rows(source), NUM_PROBED_ROWS):
        try:
            seen.append(parse(raw, text=is_text(source)))
        except BadRow as row:
            bad.append(f"{row.reason}, {'line' if counts_lines(source) else 'row'} {number}")
    if not seen and not bad:
        raise DataError(f"{source.name} holds no rows.", fix="Write one row a line into it, or name another file.")
    if not any(isinstance(row, dict) for row in seen):
        what = f"is {bad[0]}" if bad and not seen else "holds no objects with columns"
        raise DataError(f"{source.name} {what}.", fix='Write one JSON object a line, such as {"messages": [...]}.')
    if is_text(source) and source.path is not None:
        name = "plain text, a row a paragraph" if has_paragraphs(source.path) else "plain text, a row a line"
        return Dialect(name=name, kind="text", columns={"text": "text"})
    return detect(seen, source.name, renames=source.renames, tags=source.tags)
