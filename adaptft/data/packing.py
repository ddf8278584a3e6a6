"""Rows joined into full sequences. Documents keep apart: positions restart, labels never cross."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptft.data import cache
from adaptft.data.tables import PACKS, flat, row_lengths, table_writer

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray

IGNORED = -100
"""Label of tokens that are not in the loss (what torch's cross-entropy ignores)."""

_WINDOW_ROWS = 8192


def pack(rows: datasets.Dataset, max_length: int, seed: int) -> datasets.Dataset:
    """Packs of at most ``max_length`` tokens: best-fit decreasing within windows of the shuffled rows.

    Columns: ``input_ids``; ``labels``, -100 where not in the loss and at the first token of every
    document; ``position_ids``, which restart at 0 with every document. The same rows, length and seed
    give the same packs, kept in the cache.

    Raises:
        ValueError: a row is longer than ``max_length`` (``fit_rows`` comes first).
        OutputError: the cache cannot be written.
    """
    import numpy as np

    lengths = row_lengths(rows)
    if lengths.max(initial=0) > max_length:
        raise ValueError(f"a row has {lengths.max()} tokens, more than {max_length}: fit_rows comes first")
    key = hashlib.sha256(f"{rows._fingerprint} {max_length} {seed}".encode()).hexdigest()[:32]
    path = cache.rows_folder("packed", key) / cache.ROWS
    if not path.exists():
        random = np.random.default_rng(seed)
        order = random.permutation(len(rows))
        arrow = rows.with_format("arrow")
        with cache.new_folder("packed", key) as folder, table_writer(folder / cache.ROWS, PACKS) as writer:
            for start in range(0, len(rows), _WINDOW_ROWS):
                window = np.sort(order[start : start + _WINDOW_ROWS])
                bins = best_fit_decreasing(lengths[window].tolist(), max_length)
                bins = [bins[index] for index in random.permutation(len(bins))]
                writer.write(*_join(arrow[window], bins))
    return cache.open_rows(path, key)


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of ``lengths`` in bins: longest first, each into the fullest bin that still has room."""
    bins: list[list[int]] = []
    spaces: list[tuple[int, int]] = []  # (free, bin), rising
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(spaces, (lengths[index], -1))
        if place == len(spaces):
            bins.append([index])
            free, chosen = capacity, len(bins) - 1
        else:
            free, chosen = spaces.pop(place)
            bins[chosen].append(index)
        insort(spaces, (free - lengths[index], chosen))
    return bins


def _join(table: Any, bins: list[list[int]]) -> tuple[NDArray[np.int32], dict[str, NDArray[np.int32]]]:
    """Lengths of the packs, and their columns end to end."""
    import numpy as np

    row_sizes, ids, trained = flat(table)
    order = np.concatenate([np.asarray(members) for members in bins])
    sizes, ends = row_sizes[order], np.cumsum(row_sizes)[order]
    places = list(map(slice, (ends - sizes).tolist(), ends.tolist()))
    joined = np.concatenate([ids[place] for place in places])  # an index for each token would take four times as long
    labels = np.where(np.concatenate([trained[place] for place in places]), joined, np.int32(IGNORED))
    firsts = np.cumsum(sizes) - sizes
    labels[firsts[sizes > 0]] = IGNORED
    counted = np.arange(sizes.max(), dtype=np.int32)
    positions = np.concatenate([counted[:size] for size in sizes.tolist()])
    pack_lengths = np.asarray([int(row_sizes[members].sum()) for members in bins], dtype=np.int32)
    return pack_lengths, {"input_ids": joined, "labels": labels, "position_ids": positions}
