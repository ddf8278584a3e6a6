"""Text files: a row is a line, or, in hard-wrapped text such as a book, a paragraph between blank lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from adaptft.data.conversation import BadRow
from adaptft.data.streams import LONGEST_ROW, TOO_LONG, byte_lines

SHORT_LINE_BYTES = 120
"""Lines shorter than this in the mean (some 30 tokens, in Latin as in Chinese script) are pieces of a text."""
_SAMPLED_LINES = 10_000
_ENDS = tuple(mark.encode() for mark in ".!?:;…\"'”’»)]}。！？：；」』）")


def has_paragraphs(path: Path) -> bool:
    """True where short lines, most of which break off inside a sentence, stand together between blank lines.

    Judged by the file's first lines. One blank line does not make paragraphs of a list of texts: two blocks of
    several lines do.
    """
    num_bytes = num_lines = 0
    blocks: list[list[bytes]] = []
    before = -1
    for number, line in islice(byte_lines(path), _SAMPLED_LINES):
        if isinstance(line, BadRow):
            continue
        if number != before + 1:
            blocks.append([])
        blocks[-1].append(line.strip())
        num_lines, num_bytes, before = num_lines + 1, num_bytes + len(line.strip()), number
    inner = [line for block in blocks for line in block[:-1]]
    broken_off = sum(not line.endswith(_ENDS) for line in inner)
    several = sum(len(block) > 1 for block in blocks)
    return several > 1 and 2 * broken_off > len(inner) and num_bytes < SHORT_LINE_BYTES * num_lines


def text_rows(path: Path) -> Iterator[tuple[int, bytes | BadRow]]:
    """Lines, or paragraphs with their line breaks, with the numbers of their first lines (from 1)."""
    return _paragraphs(path) if has_paragraphs(path) else byte_lines(path)


def _paragraphs(path: Path) -> Iterator[tuple[int, bytes | BadRow]]:
    lines: list[bytes | BadRow] = []
    first = size = 0
    for number, line in byte_lines(path):
        if lines and number != first + len(lines):
            yield first, _paragraph(lines)
            lines = []
        first, size = (first, size) if lines else (number, 0)
        size += 0 if isinstance(line, BadRow) else len(line)
        lines.append(line if size < LONGEST_ROW else BadRow(TOO_LONG))
    if lines:
        yield first, _paragraph(lines)


def _paragraph(lines: list[bytes | BadRow]) -> bytes | BadRow:
    """The lines as one row: bad where one of them is."""
    texts = [line.rstrip(b"\r\n") for line in lines if not isinstance(line, BadRow)]
    return b"\n".join(texts) if len(texts) == len(lines) else BadRow(TOO_LONG)
