"""JSON files: a list of rows, or one row a line. Rows are read one at a time, whatever the file's size."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from adaptft.data.conversation import BadRow
from adaptft.data.streams import LONGEST_ROW, TOO_LONG, byte_lines, open_text
from adaptft.data.values import JSON, TOO_DEEP
from adaptft.errors import DataError

_CHUNK_CHARACTERS = 1 << 20
_SPACE = re.compile(r"[ \t\n\r]*")
_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_SLIPS = {  # what the parser says, and what people did
    "Invalid \\escape": "a backslash that is not doubled (a Windows path?)",
    "Invalid \\uXXXX escape": "a backslash that is not doubled (a Windows path?)",
    "Invalid control character at": "a line break or tab inside a text that is not written \\n or \\t",
}


def is_json_list(path: Path) -> bool:
    """True where the file is one list and not a row a line."""
    with open_text(path, errors="replace") as stream:
        while chunk := stream.read(4096):
            if text := chunk.lstrip():
                return text[0] == "["
    return False


def parse_line(line: bytes) -> Any:
    """One line of a JSON-lines file.

    Raises:
        BadRow: it is not UTF-8, not JSON, or nested too deeply.
    """
    try:
        return JSON.decode(line.removeprefix(codecs.BOM_UTF8).decode("utf-8"))  # files with marks are often joined
    except UnicodeDecodeError:
        raise BadRow("not UTF-8") from None
    except RecursionError:
        raise BadRow(TOO_DEEP) from None
    except json.JSONDecodeError as cause:
        slip = _SLIPS.get(cause.msg)
        raise BadRow(f"broken JSON: {slip}" if slip else "broken JSON") from None
    except ValueError:  # a number of thousands of digits
        raise BadRow("broken JSON") from None


def json_lines(path: Path) -> Iterator[tuple[int, bytes | BadRow]]:
    """Undecoded lines with their numbers: whoever tokenises them parses them too."""
    return byte_lines(path)


def json_list(path: Path) -> Iterator[tuple[int, Any]]:
    """The rows of one long list with their numbers (from 1); too deep ones and such come as a ``BadRow``.

    Raises:
        DataError: broken JSON or a row of more than ``LONGEST_ROW``, with the line; rows before it were yielded.
    """
    with open_text(path) as stream:
        yield from enumerate(_ListParser(stream, path).elements(), 1)


class _ListParser:
    """Decodes a list element by element from a buffer that is filled as needed."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        self.stream = stream
        self.path = path
        self.buffer = ""
        self.position = 0
        self.lines_before = 0
        self.at_end = False

    def elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._peek() == "]":
            self._expect("]")
        else:
            yield self._element()
            while self._peek() == ",":
                self._expect(",")
                yield self._element()
            self._expect("]")
        if self._peek():
            raise self._broken("text after the end of the list", self.position)

    def _fill(self) -> bool:
        """Drop what was read and add to the buffer; False at the end of the file."""
        self.lines_before += self.buffer.count("\n", 0, self.position)
        rest = self.buffer[self.position :]
        chunk = self.stream.read(max(_CHUNK_CHARACTERS, len(rest)))
        self.buffer, self.position, self.at_end = rest + chunk, 0, not chunk
        return bool(chunk)

    def _peek(self) -> str:
        while True:
            found = _SPACE.match(self.buffer, self.position)
            self.position = found.end() if found else self.position
            if self.position < len(self.buffer):
                return self.buffer[self.position]
            if not self._fill():
                return ""

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._broken(f"{character!r} expected", self.position)
        self.position += 1

    def _element(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = JSON.raw_decode(self.buffer, self.position)
            except RecursionError:
                value, end = BadRow(TOO_DEEP), _end_of_value(self.buffer, self.position)
            except BadRow as bad:
                value, end = bad, _end_of_value(self.buffer, self.position)
            except ValueError as cause:
                place = cause.pos if isinstance(cause, json.JSONDecodeError) else self.position
                what = cause.msg if isinstance(cause, json.JSONDecodeError) else "a number of thousands of digits"
                broken = self._broken(what, place)  # before more text moves the positions
                if len(self.buffer) - self.position > LONGEST_ROW:
                    raise self._broken(TOO_LONG, self.position) from cause
                if self._fill():
                    continue
                raise broken from cause
            if end < len(self.buffer) or self.at_end:
                self.position = end
                return value
            self._fill()

    def _broken(self, what: str, position: int) -> DataError:
        line = self.lines_before + self.buffer.count("\n", 0, position) + 1
        return DataError(
            f"{self.path} is broken JSON: {what}, line {line}.",
            fix="Mend that line, or write the rows as JSON lines (.jsonl), where one bad row is only left out.",
        )


def _end_of_value(text: str, start: int) -> int:
    """Where the list or object at ``start`` ends, found by its brackets; the text's end if it is cut off."""
    depth = 0
    for found in _STRUCTURE.finditer(text, start):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(text)
