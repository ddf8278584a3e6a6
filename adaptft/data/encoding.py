"""Masked text as token ids, so that training sees the ids that serving will send."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from adaptft.data.masking import MaskedText

BOUNDARY_MOVED = (
    "rows whose prompt tokenises otherwise when an answer follows it (this tokenizer joins across the seam)"
)
_SEAM = "\nHello"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids of one row, and for each whether it is in the loss."""

    ids: list[int]
    trained: list[bool]
    notes: tuple[str, ...] = ()


class Encoder:
    """A tokenizer, asked for ids and character offsets without special tokens of its own."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        self.eos_id: int | None = tokenizer.eos_token_id
        if self.backend is not None:  # tokenizer.json may carry a length limit of its own
            self.backend.no_truncation()
            self.backend.no_padding()

    def encode(self, text: str, spans: tuple[tuple[int, int], ...]) -> tuple[list[int], list[bool]]:
        """Ids of ``text``; trained are the tokens that begin inside one of the (sorted) ``spans``."""
        if not text:
            return [], []
        if self.backend is None:
            return self._encode_pieces(text, spans)
        encoding = self.backend.encode(text, add_special_tokens=False)
        ids = encoding.ids
        if not spans:
            return ids, [False] * len(ids)
        if spans == ((0, len(text)),):
            return ids, [True] * len(ids)
        return ids, _inside([start for start, _ in encoding.offsets], spans)

    def _encode_pieces(self, text: str, spans: tuple[tuple[int, int], ...]) -> tuple[list[int], list[bool]]:
        """For tokenizers without offsets: each span is tokenised alone."""
        ids: list[int] = []
        trained: list[bool] = []
        position = 0
        for start, end in (*spans, (len(text), len(text))):
            for piece, is_trained in ((text[position:start], False), (text[start:end], True)):
                new = self.tokenizer.encode(piece, add_special_tokens=False) if piece else []
                ids += new
                trained += [is_trained] * len(new)
            position = end
        return ids, trained

    @cached_property
    def is_seamless(self) -> bool:
        """True where an answer tokenised alone has the ids that it has after its prompt (no dummy prefix)."""
        whole, _ = self.encode(_SEAM, ())
        alone, _ = self.encode(_SEAM[1:], ())
        return whole[-len(alone) :] == alone

    def tokens(self, masked: MaskedText) -> Tokens:
        """Ids of a conversation. The prompt of its last answer is tokenised by itself, as serving does it."""
        cut = masked.prompt_end
        before = tuple((start, min(end, cut)) for start, end in masked.spans if start < cut)
        after = tuple((max(start, cut) - cut, end - cut) for start, end in masked.spans if end > cut)
        ids, trained = self.encode(masked.text[:cut], before)
        notes: tuple[str, ...] = ()
        if self.is_seamless:
            answer_ids, answer_trained = self.encode(masked.text[cut:], after)
            ids, trained = ids + answer_ids, trained + answer_trained
        else:
            whole, whole_trained = self.encode(masked.text, masked.spans)
            notes = () if whole[: len(ids)] == ids else (BOUNDARY_MOVED,)
            ids, trained = whole, whole_trained
        if masked.add_eos and self.eos_id is not None:
            ids, trained = [*ids, self.eos_id], [*trained, True]
        return Tokens(ids, trained, notes)

    def text(self, text: str) -> Tokens:
        """Ids of plain text, all trained, with what the tokenizer puts around it and the end-of-text token."""
        if self.backend is None:
            ids = list(self.tokenizer.encode(text, add_special_tokens=True))
        else:
            ids = self.backend.encode(text, add_special_tokens=True).ids
        if self.eos_id is not None and (not ids or ids[-1] != self.eos_id):
            ids.append(self.eos_id)
        return Tokens(ids, [True] * len(ids))


def _inside(starts: list[int], spans: tuple[tuple[int, int], ...]) -> list[bool]:
    """For each (rising) start whether it lies in a span."""
    inside = []
    remaining = iter((*spans, (1 << 62, 1 << 62)))
    begin, end = next(remaining)
    for start in starts:
        while start >= end:
            begin, end = next(remaining)
        inside.append(start >= begin)
    return inside
