"""A value as somebody wrote it, with the words to point at it in an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from adaptft.errors import RequestError

_SECRET = re.compile(r"(api_key|(hub|hf|auth|access|api)_token|password|secret)$")
"""Ends of the names of values that no error shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """``label`` is the key and value as written ("cutoff_len: 2k", "--packing maybe"); ``where`` is a place or ""."""

    raw: Any
    label: str
    where: str = ""

    def wrong(self, complaint: str, *, fix: str) -> RequestError:
        """An error that points here: ``packing: maybe is not yes or no (recipe.yaml, line 3).``"""
        place = f" ({self.where})" if self.where else ""
        return RequestError(f"{self.label} {complaint}{place}.", fix=fix)

    def with_raw(self, raw: Any) -> Given:
        """Another value that the same words stand for."""
        return Given(raw=raw, label=self.label, where=self.where)

    @property
    def text(self) -> str:
        """The value as text without surrounding blanks and quotes; booleans as ``true`` and ``false``."""
        if isinstance(self.raw, bool):
            return str(self.raw).lower()
        text = str(self.raw).strip()
        quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
        return text[1:-1].strip() if quoted else text

    @property
    def word(self) -> str:
        """``text`` in lower case."""
        return self.text.lower()


def in_recipe(key: str, raw: Any, where: str) -> Given:
    """A value from a recipe."""
    return Given(raw=raw, label=f"{key}: {_shown(key, raw)}", where=where)


def on_command_line(key: str, raw: Any) -> Given:
    """A value from an option."""
    return Given(raw=raw, label=f"--{key} {_shown(key, raw)}")


def _shown(key: str, raw: Any) -> str:
    if _SECRET.search(key.lower().replace("-", "_")):
        return "***"
    if isinstance(raw, (list, tuple)):
        raw = raw[0] if len(raw) == 1 else f"[{', '.join(map(str, raw))}]"
    if isinstance(raw, bool):
        raw = str(raw).lower()
    text = " ".join(str(raw).split()) if raw is not None else ""
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if text else '""'
