"""Rows that are both trained on and evaluated on: a loss on them says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

_BATCH_ROWS = 4096


def overlap(training: Any, held_out: Any) -> int:
    """How many rows of ``held_out`` are rows of ``training`` too, token for token."""
    trained = set(_hashes(training))
    return sum(digest in trained for digest in _hashes(held_out))


def overlap_warning(training: Any, held_out: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """What to say of ``held_out`` (called ``names``) where it has rows of ``training``; else nothing."""
    count = overlap(training, held_out)
    if not count:
        return ()
    share = "all" if count == len(held_out) else f"{count:,} of the {len(held_out):,}"
    return (
        f"{share} rows of {', '.join(names)} are rows of the training data too: their loss says nothing of new rows.",
    )


def _hashes(rows: Any) -> Iterator[int]:
    from adaptft.data.tables import flat

    for table in rows.with_format("arrow").iter(_BATCH_ROWS):
        lengths, ids, _ = flat(table)
        end = 0
        for length in lengths.tolist():
            yield xxhash.xxh3_64_intdigest(ids[end : end + length].tobytes())
            end += length
