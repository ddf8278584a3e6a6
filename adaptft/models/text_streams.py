"""Tokens to text as they come: whole characters only, and nothing from a stop text on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_HALF = "\N{REPLACEMENT CHARACTER}"


@dataclass(slots=True)
class TokenText:
    """The text of a growing list of tokens, in pieces whose sum is the same however they come.

    A piece is the difference of two decoded windows, as blanks at a token's start depend on the token before.
    Bytes of a character that is not complete yet are held back; those that never become one are left out.
    """

    tokenizer: Any
    ids: list[int] = field(default_factory=list)
    _window: int = 0
    _written: int = 0

    def push(self, ids: Iterable[int]) -> str:
        """What the new tokens add."""
        self.ids.extend(ids)
        piece = self._piece()
        if piece.endswith(_HALF):
            return ""
        if piece:
            self._window, self._written = self._written, len(self.ids)
        return piece

    def end(self) -> str:
        """What was held back, without the bytes of a character that was cut."""
        piece = self._piece().rstrip(_HALF)
        self._window = self._written = len(self.ids)
        return piece

    def _piece(self) -> str:
        before = self._decode(self.ids[self._window : self._written])
        return self._decode(self.ids[self._window :])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)


@dataclass(slots=True)
class StopTexts:
    """Lets text through up to the first of ``stops``; what may be the start of one waits for its rest."""

    stops: tuple[str, ...]
    found: bool = False
    _held: str = ""

    def push(self, text: str) -> str:
        """The part of the text that is certainly before every stop text."""
        if self.found:
            return ""
        self._held += text
        starts = [start for stop in self.stops if (start := self._held.find(stop)) >= 0]
        self.found = bool(starts)
        length = min(starts) if starts else len(self._held) - self._open_length()
        piece, self._held = self._held[:length], "" if self.found else self._held[length:]
        return piece

    def end(self) -> str:
        """What waited: no stop text came of it."""
        piece, self._held = self._held, ""
        return piece

    def _open_length(self) -> int:
        """Length of the longest end of the text that a stop text starts with."""
        longest = max(map(len, self.stops), default=1) - 1
        lengths = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(self._held[-n:]) for stop in self.stops)), 0)
