"""Data files as streams of bytes or text: compression and byte-order marks are dealt with here."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import AnyStr, BinaryIO, cast

from adaptft.data.conversation import BadRow
from adaptft.errors import DataError
from adaptft.units import MiB

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
LONGEST_ROW = 16 * MiB
"""Bytes (of decoded text: characters) of one row: some four million tokens. What is longer is no row but a slip."""
TOO_LONG = "a row of more than 16 MiB (are line ends missing?)"
_MARKS = (  # longest first: UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip


def bare_suffix(path: Path) -> str:
    """The suffix that tells the format: ``rows.jsonl.gz`` -> ``.jsonl``."""
    name = Path(path.stem) if path.suffix.lower() in COMPRESSIONS else path
    return name.suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """``path`` decompressed.

    Raises:
        DataError: it cannot be read, or its compression is damaged.
    """
    try:
        with _opened(path) as stream:
            yield stream
    except OSError as cause:
        raise DataError(f"Cannot read {path}: {cause}.", fix="Check that the file is whole and readable.") from cause


def _opened(path: Path) -> BinaryIO:
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        return path.open("rb")
    import pyarrow as pa

    return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), compression), 1 << 20))


def encoding_of(path: Path) -> str:
    """The encoding that the byte-order mark names; ``utf-8`` without one."""
    with open_bytes(path) as stream:
        head = stream.read(4)
    return next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")


@contextmanager
def open_text(path: Path, *, errors: str = "strict") -> Iterator[io.TextIOWrapper]:
    """``path`` as text with its line ends untouched; ``errors`` as ``open`` takes it.

    Raises:
        DataError: it is not in the encoding that its mark names (UTF-8 without one).
    """
    encoding = encoding_of(path)
    try:
        with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding=encoding, errors=errors, newline="") as text:
            yield text
    except UnicodeError as cause:
        raise DataError(
            f"{path} is not {encoding.removesuffix('-sig').upper()} text ({cause}).",
            fix="Save it as UTF-8 (in a spreadsheet: CSV UTF-8; in a shell: iconv -f gb18030 -t utf-8).",
        ) from cause


def byte_lines(path: Path) -> Iterator[tuple[int, bytes | BadRow]]:
    """Lines with their numbers (from 1) as UTF-8; blank lines are skipped but counted.

    A line of bad UTF-8 is passed on as it is, for its reader to reject alone. One that is longer than
    ``LONGEST_ROW`` comes as a ``BadRow`` and is never held in memory.
    """
    encoding = encoding_of(path)
    if encoding in ("utf-8", "utf-8-sig"):
        with open_bytes(path) as stream:
            if encoding == "utf-8-sig":
                stream.read(len(codecs.BOM_UTF8))
            yield from _rows(bounded_lines(stream.readline))
        return
    with open_text(path) as text:
        yield from _rows((n, None if line is None else line.encode()) for n, line in bounded_lines(text.readline))


def _rows(lines: Iterable[tuple[int, bytes | None]]) -> Iterator[tuple[int, bytes | BadRow]]:
    for number, line in lines:
        if line is None:
            yield number, BadRow(TOO_LONG)
        elif not line.isspace():
            yield number, line


def bounded_lines(readline: Callable[[int], AnyStr]) -> Iterator[tuple[int, AnyStr | None]]:
    """What ``readline`` (of a stream of bytes or text) gives, numbered from 1; None for lines of ``LONGEST_ROW``
    or more, which are read past in pieces."""
    number = 0
    while line := readline(LONGEST_ROW):
        number += 1
        is_long = len(line) == LONGEST_ROW
        yield number, None if is_long else line
        while len(line) == LONGEST_ROW and line[-1:] not in ("\n", b"\n"):
            line = readline(LONGEST_ROW)
