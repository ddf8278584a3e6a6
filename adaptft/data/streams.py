"""Data files as streams of bytes or text: compression and byte-order marks are dealt with here."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from adaptft.errors import DataError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
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


def byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers (from 1) as UTF-8; blank lines are skipped but counted.

    A line of bad UTF-8 is passed on as it is, for its reader to reject alone.
    """
    encoding = encoding_of(path)
    if encoding in ("utf-8", "utf-8-sig"):
        with open_bytes(path) as stream:
            if encoding == "utf-8-sig":
                stream.read(len(codecs.BOM_UTF8))
            yield from ((n, line) for n, line in enumerate(stream, 1) if line.strip())
        return
    with open_text(path) as text:
        yield from ((n, line.encode()) for n, line in enumerate(text, 1) if line.strip())
