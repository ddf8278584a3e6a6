"""Ids of texts, word by word and remembered, where the tokenizer is known to cut between words too.

Each word is tokenised by the tokenizer itself; what is saved is doing so again for every row. A byte-level
tokenizer first cuts a text by a regular expression, and what is between two cuts does not depend on the rest. In
the ``CUTTING`` ones no match holds a space after anything but white space: there is a cut before every such space,
and no look-ahead sees across it. NFC composes nothing with a space either (Unicode Annex 15, stable code points).
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_BYTES = 96 << 20
"""About what is remembered at most, in each process: twice half of it, since the older half is kept while the newer one
fills. What is asked for again moves over, so words that are common stay."""
_BYTES_PER_WORD = 160
"""Of a word and its ids as Python objects, beside the characters."""
_SOLID = r"[\w!-~]"
"""A character that is not white space, whoever defines that."""
_BOUNDARY = re.compile(rf"(?<={_SOLID})(?= )")
"""Between such a character and a space."""
_WORD = re.compile(rf".[^ ]*(?:(?<!{_SOLID}) [^ ]*)*", re.DOTALL)
"""From one boundary to the next: what splitting there gives, in half the time."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER, _UPPER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
CUTTING = frozenset(
    [
        *(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_REST}"
          for digits in (r"\p{N}", r"\p{N}{1,3}")),  # Qwen 2 and 3; Llama 3, cl100k
        *(rf"{_CASED}{_UPPER}*{_LOWER}+{ending}|{_CASED}{_UPPER}+{_LOWER}*{ending}|{digits}"
          rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_REST}"
          for digits, ending in ((r"\p{N}{1,3}", f"{_CONTRACTIONS}?"), (r"\p{N}", ""))),  # o200k; Mistral's Tekken
    ]
)  # fmt: skip


def cuts_between_words(backend: Any) -> bool:
    """True where ``backend`` (a ``tokenizers.Tokenizer``) surely gives a text the ids of its words."""
    made = json.loads(backend.to_str())
    step = made["pre_tokenizer"] or {"type": None}
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    return (
        (made["normalizer"] or {"type": "NFC"}) == {"type": "NFC"}
        and made["model"].get("dropout") is None
        and all(map(_cuts, steps))
        and all(step["type"] != "ByteLevel" for step in steps[:-1])  # which writes a space as a letter
        and any(step["type"] == "Split" or step.get("use_regex") for step in steps)
        and not any(map(_reaches_over, made["added_tokens"]))
    )


def _cuts(step: dict[str, Any]) -> bool:
    """Whether a part of a pre-tokenizer looks at no more than what is between two boundaries."""
    match step:
        case {"type": "Digits"}:
            return True
        case {"type": "ByteLevel"}:
            return not step["add_prefix_space"]
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}:
            return regex in CUTTING
    return False


def _reaches_over(token: dict[str, Any]) -> bool:
    """Whether an added token takes spaces around it along, or asks what is beside it."""
    return " " in token["content"] or token["lstrip"] or token["rstrip"] or token["single_word"]


class WordMemory:
    """Texts to ids, by a tokenizer that ``cuts_between_words``."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._ids: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}
        self._bytes = 0

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """The ids of each text, without special tokens around it."""
        import numpy as np

        split = [_WORD.findall(text) for text in texts]
        self._learn(set().union(*split).difference(self._ids))
        ids = [np.frombuffer(b"".join(map(self._ids.__getitem__, words)), np.int32) for words in split]
        if self._bytes > MOST_BYTES // 2:
            self._older, self._ids, self._bytes = self._ids, {}, 0
        return ids

    def around(self, text: str, place: int) -> tuple[int, int]:
        """Where the word begins and ends that holds the characters on both sides of ``place``."""
        start = text.rfind(" ", 0, place + 1)
        while start > 0 and not _BOUNDARY.match(text, start):
            start = text.rfind(" ", 0, start)
        end = _BOUNDARY.search(text, place)
        return max(start, 0), len(text) if end is None else end.start()

    def _learn(self, words: set[str]) -> None:
        new = [word for word in words if word not in self._older]
        for word in words.difference(new):
            self._remember(word, self._older[word])
        for word, encoding in zip(new, self._backend.encode_batch_fast(new, add_special_tokens=False), strict=True):
            self._remember(word, array("i", encoding.ids).tobytes())

    def _remember(self, word: str, ids: bytes) -> None:
        self._ids[word] = ids
        self._bytes += len(word) + len(ids) + _BYTES_PER_WORD
