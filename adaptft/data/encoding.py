"""Masked text as token ids, so that training sees the ids that serving will send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from adaptft.data.conversation import Conversation
from adaptft.data.masking import MaskedText
from adaptft.data.words import WordMemory, cuts_between_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BOUNDARY_MOVED = (
    "rows whose prompt tokenises otherwise when an answer follows it (this tokenizer joins across the seam)"
)
CONTROL_TOKENS = "the text holds {}, which the tokenizer reads as control tokens and not as text"
_SEAM = "\nHello"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of one row, and for each whether it is in the loss."""

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text that is tokenised by itself, and the (sorted) spans of it that are in the loss."""

    text: str
    spans: tuple[tuple[int, int], ...]

    @property
    def is_uniform(self) -> bool:
        """True where all or nothing is in the loss: no offsets are needed then, which is faster."""
        return not self.spans or self.spans == ((0, len(self.text)),)


_Part: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.bool_]]"
"""Ids, and for each whether it is in the loss."""


class Encoder:
    """A tokenizer, asked for ids and character offsets without special tokens of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        self.eos_id: int | None = tokenizer.eos_token_id
        if self.backend is not None:  # tokenizer.json may carry a length limit of its own
            self.backend.no_truncation()
            self.backend.no_padding()
        knows_words = self.backend is not None and cuts_between_words(self.backend)
        self._memory = WordMemory(self.backend) if knows_words else None

    @cached_property
    def is_seamless(self) -> bool:
        """True where an answer tokenised alone has the ids that it has after its prompt (no dummy prefix)."""
        import numpy as np

        whole, alone = self._ids([_SEAM, _SEAM[1:]])
        return bool(np.array_equal(whole[-len(alone) :], alone))

    @cached_property
    def _control_tokens(self) -> re.Pattern[str] | None:
        """Finds the texts of special tokens: written in a row, they are read as the tokens themselves."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        words = {str(token) for token in added if token.special} | set(self.tokenizer.all_special_tokens)
        return re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True)))) if words else None

    def control_tokens_in(self, conversation: Conversation) -> tuple[str, ...]:
        """A note where the texts of a row (and not the chat template) hold special tokens."""
        if self._control_tokens is None:
            return ()
        texts = [conversation.text or "", *(turn.content for turn in conversation.turns)]
        found = sorted({match[0] for text in texts for match in self._control_tokens.finditer(text)})
        return (CONTROL_TOKENS.format(", ".join(found)),) if found else ()

    def tokens(self, rows: Sequence[MaskedText | str]) -> list[Tokens]:
        """Ids of conversations (masked) and of plain texts (strings).

        The prompt of a conversation's last answer is tokenised by itself, as serving does it. Plain text
        gets what the tokenizer puts around it and the end-of-text token, and is trained whole.
        """
        pieces = [[] if isinstance(row, str) else self._pieces(row) for row in rows]
        encoded = self._encode([piece for row_pieces in pieces for piece in row_pieces])
        return [
            self._text(row) if isinstance(row, str) else self._join(row, [next(encoded) for _ in row_pieces])
            for row, row_pieces in zip(rows, pieces, strict=True)
        ]

    def _pieces(self, row: MaskedText) -> list[_Piece]:
        """The prompt, the answer, and the white space after its end of turn.

        Where words are known, those at the ends of spans are pieces of their own: offsets are needed in these alone.
        """
        end = max(end for _, end in row.spans)
        cuts = {0, len(row.text)}
        if self.is_seamless:
            cuts |= {row.prompt_end, max(end, row.prompt_end)}
        if self._memory is not None:
            edges = {edge for span in row.spans for edge in span} - cuts
            cuts.update(*(self._memory.around(row.text, edge) for edge in edges))
        return [
            _Piece(row.text[start:stop], _clipped(row.spans, start, stop)) for start, stop in pairwise(sorted(cuts))
        ]

    def _join(self, row: MaskedText, parts: list[_Part]) -> Tokens:
        import numpy as np

        notes: tuple[str, ...] = ()
        if not self.is_seamless:
            (prompt,) = self._ids([row.text[: row.prompt_end]])
            whole = np.concatenate([ids for ids, _ in parts])
            notes = () if np.array_equal(whole[: len(prompt)], prompt) else (BOUNDARY_MOVED,)
        if row.add_eos and self.eos_id is not None:
            parts = [*parts, (_int32([self.eos_id]), np.ones(1, np.bool_))]
        return Tokens(
            np.concatenate([ids for ids, _ in parts]), np.concatenate([trained for _, trained in parts]), notes
        )

    def _text(self, text: str) -> Tokens:
        import numpy as np

        if self.backend is None:
            ids = list(self.tokenizer.encode(text, add_special_tokens=True))
        else:
            ids = self.backend.encode(text, add_special_tokens=True).ids
        if self.eos_id is not None and (not ids or ids[-1] != self.eos_id):
            ids.append(self.eos_id)
        return Tokens(_int32(ids), np.ones(len(ids), np.bool_))

    def _encode(self, pieces: list[_Piece]) -> Iterator[_Part]:
        import numpy as np

        uniform = iter(self._ids([piece.text for piece in pieces if piece.is_uniform]))
        for piece in pieces:
            if piece.is_uniform:
                ids = next(uniform)
                yield ids, np.full(len(ids), bool(piece.spans))
            else:
                yield self._encode_mixed(piece)

    def _ids(self, texts: list[str]) -> list[NDArray[np.int32]]:
        if self._memory is not None:
            return self._memory.encode(texts)
        if self.backend is None:
            return [_int32(self.tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        return [_int32(encoding.ids) for encoding in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _encode_mixed(self, piece: _Piece) -> _Part:
        """Trained are the tokens that hold a part of a span; without offsets each span is tokenised alone."""
        import numpy as np

        if self.backend is not None:
            encoding = self.backend.encode(piece.text, add_special_tokens=False)
            return _int32(encoding.ids), np.array(_inside(encoding.offsets, piece.spans), np.bool_)
        cuts = [0, *chain.from_iterable(piece.spans), len(piece.text)]
        ids = self._ids([piece.text[start:stop] for start, stop in pairwise(cuts)])  # by turns out of and in the loss
        return np.concatenate(ids), np.concatenate(
            [np.full(len(part), index % 2 == 1) for index, part in enumerate(ids)]
        )


def _int32(ids: list[int]) -> NDArray[np.int32]:
    import numpy as np

    return np.array(ids, np.int32)


def _clipped(spans: tuple[tuple[int, int], ...], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The parts of ``spans`` within ``start .. stop``, counted from ``start``."""
    return tuple((max(a, start) - start, min(b, stop) - start) for a, b in spans if a < stop and b > start)


def _inside(offsets: list[tuple[int, int]], spans: tuple[tuple[int, int], ...]) -> list[bool]:
    """For each token (from character, to character; rising) whether it holds a character of a span.

    A token across the seam (the space of a prompt with the first word of an earlier answer) counts as the answer's.
    """
    inside = []
    remaining = iter((*spans, (1 << 62, 1 << 62)))
    begin, end = next(remaining)
    for start, stop in offsets:
        while start >= end:
            begin, end = next(remaining)
        inside.append(stop > begin)
    return inside
