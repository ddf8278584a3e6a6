"""Rows held out for evaluation, and rows brought under max_length; nothing is cut without being counted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from adaptft.data import cache
from adaptft.data.settings import TokenizedData
from adaptft.data.tables import TOKENS, flat, length_profile, row_lengths, table_writer, trained_counts
from adaptft.errors import DataError

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray

Strategy = Literal["delete", "left", "right", "split"]
_BATCH_ROWS = 4096


def split(tokenized: TokenizedData, ratio: float, seed: int) -> tuple[TokenizedData, TokenizedData | None]:
    """Rows to train on and rows held out, at random by ``seed``; None where ``ratio`` is 0.

    At least one row is held out. Reports and samples are those of the whole.

    Raises:
        DataError: nothing would be left to train on.
    """
    import numpy as np

    if ratio <= 0:
        return tokenized, None
    num_rows = len(tokenized.rows)
    num_held_out = max(1, round(num_rows * ratio))
    if num_held_out >= num_rows:
        raise DataError(
            f"Of {num_rows:,} rows, split_dataset_ratio {ratio:g} leaves none to train on.",
            fix="Lower it, or name held-out rows of their own: --val_dataset FILE",
        )
    held_out = np.zeros(num_rows, bool)
    held_out[np.random.default_rng(seed).permutation(num_rows)[:num_held_out]] = True
    lengths = row_lengths(tokenized.rows)
    evaluated = _part(tokenized, held_out, lengths, None)
    rest = tokenized.shape.num_trained_tokens - evaluated.shape.num_trained_tokens
    return _part(tokenized, ~held_out, lengths, rest), evaluated


def _part(
    tokenized: TokenizedData, chosen: NDArray[np.bool_], lengths: NDArray[np.int64], num_trained: int | None
) -> TokenizedData:
    import numpy as np

    return _with_rows(tokenized, tokenized.rows.select(np.flatnonzero(chosen)), lengths[chosen], num_trained)


def _with_rows(
    tokenized: TokenizedData, rows: datasets.Dataset, lengths: NDArray[np.int64], num_trained: int | None = None
) -> TokenizedData:
    """``tokenized`` with other rows, of these lengths, and their shape; trained tokens are counted where not known."""
    shape = replace(
        tokenized.shape,
        num_rows=len(rows),
        num_tokens=int(lengths.sum()),
        num_trained_tokens=int(trained_counts(rows).sum()) if num_trained is None else num_trained,
        longest_row_tokens=int(lengths.max(initial=0)),
        length_profile=length_profile(lengths),
    )
    return replace(tokenized, rows=rows, shape=shape)


def fit(
    tokenized: TokenizedData, max_length: int, strategy: Strategy = "delete"
) -> tuple[TokenizedData, tuple[str, ...]]:
    """``fit_rows`` of ``tokenized``, with the shape and the samples of what is left.

    Raises:
        DataError, OutputError: as ``fit_rows``.
    """
    rows, notes = fit_rows(tokenized.rows, max_length, strategy)
    if not notes:
        return tokenized, notes
    samples = tuple(sample for sample in tokenized.samples if sample.num_tokens <= max_length)
    fitted = replace(tokenized, samples=samples or tokenized.samples)  # none where all rows were cut
    return _with_rows(fitted, rows, row_lengths(rows)), notes


def fit_rows(
    rows: datasets.Dataset, max_length: int, strategy: Strategy = "delete", *, can_cut: bool = True
) -> tuple[datasets.Dataset, tuple[str, ...]]:
    """Rows of at most ``max_length`` tokens, and notes that count what was done to longer ones.

    ``delete`` leaves them out, ``right`` keeps their beginning, ``left`` their end, ``split`` all of them
    in pieces. A piece without a token in the loss is left out and counted.

    Args:
        can_cut: the user can choose another strategy; eval, which compares whole rows, has none.

    Raises:
        DataError: no row is left.
        OutputError: the cache cannot be written.
    """
    import numpy as np

    lengths = row_lengths(rows)
    num_long = int((lengths > max_length).sum())
    if num_long == 0:
        return rows, ()
    note = f"{num_long:,} of {len(rows):,} rows are longer than max_length {max_length:,} (longest {lengths.max():,}): "
    if strategy == "delete":
        kept = rows.select(np.flatnonzero(lengths <= max_length))
        notes: tuple[str, ...] = (note + "left out (truncation_strategy delete).",)
    else:
        kept, num_untrained = _cut(rows, max_length, strategy)
        notes = (note + f"cut (truncation_strategy {strategy}).",)
        if num_untrained:
            notes += (f"{num_untrained:,} rows or pieces have no token in the loss after the cut: left out.",)
    if len(kept) == 0:
        raise DataError(
            f"No row is left: all {len(rows):,} are longer than max_length {max_length:,} "
            f"(shortest {lengths.min():,} tokens).",
            fix=f"Raise it: --max_length {lengths.max()}"
            + (", or keep parts: --truncation_strategy right" if can_cut else ""),
        )
    return kept, notes


def _cut(rows: datasets.Dataset, max_length: int, strategy: Strategy) -> tuple[datasets.Dataset, int]:
    """Rows with long ones cut, from the cache where they were cut before, and how many pieces fell away."""
    key = hashlib.sha256(f"{rows._fingerprint} {max_length} {strategy}".encode()).hexdigest()[:32]
    path = cache.rows_folder("fitted", key) / cache.ROWS
    if not path.exists():
        with cache.new_folder("fitted", key) as folder, table_writer(folder / cache.ROWS, TOKENS) as writer:
            arrow = rows.with_format("arrow")
            for start in range(0, len(rows), _BATCH_ROWS):
                lengths, ids, trained = flat(arrow[start : start + _BATCH_ROWS])
                starts, ends = _pieces(lengths, max_length, strategy)
                useful = _has_trained(trained, starts, ends)
                starts, ends = starts[useful], ends[useful]
                index = gather_index(starts, ends - starts)
                writer.write((ends - starts).astype("int32"), {"input_ids": ids[index], "trained": trained[index]})
    kept = cache.open_rows(path, key)
    return kept, _count_pieces(row_lengths(rows), max_length, strategy) - len(kept)


def _pieces(
    lengths: NDArray[np.int64], max_length: int, strategy: Strategy
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of what is kept of rows that lie end to end."""
    import numpy as np

    ends = np.cumsum(lengths)
    starts = ends - lengths
    if strategy == "right":
        return starts, np.minimum(ends, starts + max_length)
    if strategy == "left":
        return np.maximum(starts, ends - max_length), ends
    counts = -(-lengths // max_length)
    piece_starts = np.repeat(starts, counts) + gather_index(np.zeros_like(counts), counts) * max_length
    return piece_starts, np.minimum(piece_starts + max_length, np.repeat(ends, counts))


def _count_pieces(lengths: NDArray[np.int64], max_length: int, strategy: Strategy) -> int:
    return int((-(-lengths // max_length)).sum()) if strategy == "split" else len(lengths)


def _has_trained(
    trained: NDArray[np.bool_], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_]:  # fmt: skip
    """For each piece whether a token after its first is in the loss (the first is never predicted)."""
    import numpy as np

    before = np.concatenate(([0], np.cumsum(trained)))
    return before[ends] > before[np.minimum(starts + 1, ends)]


def gather_index(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices ``start .. start + length`` of every piece, one piece after the other."""
    import numpy as np

    offsets = np.cumsum(lengths) - lengths
    return np.repeat(starts - offsets, lengths) + np.arange(int(lengths.sum()))
