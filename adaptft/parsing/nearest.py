"""The word that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word closest to ``word`` (``-`` and ``_`` and case are the same), None where none is close."""
    folded = {_fold(k): k for k in known}
    found = difflib.get_close_matches(_fold(word), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """``Did you mean lora_rank?``, or ``otherwise`` where nothing is near."""
    found = nearest(word, known)
    return f"Did you mean {found}? {otherwise}" if found else otherwise


def _fold(word: str) -> str:
    return word.lower().replace("-", "_")
