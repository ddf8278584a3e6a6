"""One rendered row with its loss mask, for people: readable in colour, in black and white, and in a log file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.text import Text

LOSS_BEGINS, LOSS_ENDS = "⟦", "⟧"
_LONGEST_PIECE = 3000
Names = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of decoded tokens that are all in the loss, or all out of it."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedSample:
    """A row as the model sees it. ``where`` names it: "row 3 of alpaca.json"."""

    where: str
    pieces: tuple[Piece, ...]
    num_tokens: int
    num_trained_tokens: int

    @property
    def trained_texts(self) -> tuple[str, ...]:
        """The stretches of text that are in the loss."""
        return tuple(piece.text for piece in self.pieces if piece.trained)


def make_sample(where: str, ids: list[int], trained: list[bool], tokenizer: Any) -> RenderedSample:
    """Decode a row stretch by stretch."""
    pieces: list[Piece] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or trained[end] != trained[start]:
            text = tokenizer.decode(ids[start:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            pieces.append(Piece(str(text), trained[start]))
            start = end
    return RenderedSample(where=where, pieces=tuple(pieces), num_tokens=len(ids), num_trained_tokens=sum(trained))


class SampleRows:
    """Rows to show one of: the first, ever shorter ones, and the shortest. Whatever max_length leaves out later,
    one of them is left if any row is."""

    def __init__(self) -> None:
        self._rows: list[_TokenRow] = []
        self._shortest: _TokenRow | None = None

    def add(self, lengths: NDArray[np.int32], ids: NDArray[np.int32], trained: NDArray[np.bool_], names: Names) -> None:
        """Look at rows that lie end to end; ``names`` gives the name of the row at an index."""
        import numpy as np

        bound = len(self._shortest.ids) if self._shortest else np.iinfo(np.int32).max
        ends = np.cumsum(lengths)
        for index in np.flatnonzero(lengths < bound).tolist():
            if lengths[index] < bound:
                bound, place = int(lengths[index]), slice(ends[index] - lengths[index], ends[index])
                self._shortest = _TokenRow(names(index), ids[place].tolist(), trained[place].tolist())
                if not self._rows or 2 * bound <= len(self._rows[-1].ids):  # few, even of rows sorted by length
                    self._rows.append(self._shortest)

    def render(self, tokenizer: Any) -> tuple[RenderedSample, ...]:
        """The rows as samples, longest first."""
        shortest = [] if self._shortest is None or self._shortest is self._rows[-1] else [self._shortest]
        rows = [*self._rows, *shortest]
        return tuple(make_sample(row.where, row.ids, row.trained, tokenizer) for row in rows)


@dataclass(frozen=True, slots=True)
class _TokenRow:
    where: str
    ids: list[int]
    trained: list[bool]


def _heading(sample: RenderedSample) -> str:
    return (
        f"Sample: {sample.where}, {sample.num_tokens:,} tokens; {sample.num_trained_tokens:,} of them, "
        f"between {LOSS_BEGINS} and {LOSS_ENDS}, are in the loss."
    )


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_PIECE:
        return text
    half = _LONGEST_PIECE // 2
    return f"{text[:half]}[... {len(text) - 2 * half:,} characters left out ...]{text[-half:]}"


def sample_text(sample: RenderedSample) -> Text:
    """The sample for a terminal: what is in the loss is green and bold and stands between marks."""
    from rich.text import Text

    text = Text(_heading(sample) + "\n", style="bold")
    for piece in sample.pieces:
        marked = f"{LOSS_BEGINS}{_shortened(piece.text)}{LOSS_ENDS}" if piece.trained else _shortened(piece.text)
        text.append(marked, style="not dim bold green" if piece.trained else "not bold dim")
    text.append("\nText in the loss:", style="not dim bold")
    for trained in sample.trained_texts:
        text.append(f"\n  {json.dumps(_shortened(trained), ensure_ascii=False)}", style="not bold green")
    return text


def sample_lines(sample: RenderedSample) -> str:
    """The same as plain text, for logs."""
    return sample_text(sample).plain
