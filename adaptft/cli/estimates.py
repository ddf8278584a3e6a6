"""The size of data that nobody has tokenised."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from adaptft.facts import DatasetShape
from adaptft.requests import Hub

if TYPE_CHECKING:
    from adaptft.data.sources import Source

BYTES_PER_TOKEN = 4
TOKENS_PER_ROW = 256
ASSUMED_ROWS = 10_000
SAMPLED_ROWS = 2000


def estimate(names: tuple[str, ...], hub: Hub | None = None) -> DatasetShape:
    """Four bytes a token for files; what is on a hub has the rows that ``#500`` takes, or 10 000.

    Raises:
        DataError: a file or folder that is not there.
    """
    from adaptft.data.sources import resolve

    sizes = [_size(source) for source in resolve(names, hub)]
    tokens = sum(count for _, count in sizes)
    return DatasetShape(
        num_rows=sum(rows for rows, _ in sizes),
        num_tokens=tokens,
        num_trained_tokens=tokens // 2,
        longest_row_tokens=4 * TOKENS_PER_ROW,
        sources=names,
        assumed=True,
    )


def _size(source: Source) -> tuple[int, int]:
    """Rows and tokens of one source."""
    if source.path is None:
        rows = source.limit or ASSUMED_ROWS
        return rows, rows * TOKENS_PER_ROW
    num_bytes = source.path.stat().st_size
    if source.limit is None:
        tokens = num_bytes // BYTES_PER_TOKEN
        return max(tokens // TOKENS_PER_ROW, 1), tokens
    return _part(source, source.limit, num_bytes)


def _part(source: Source, limit: int, num_bytes: int) -> tuple[int, int]:
    """The first ``limit`` rows of a file: read, or, of many, as long as the first ones are."""
    from adaptft.data.reading import raw_rows

    lengths = [_num_bytes(row) for _, row in islice(raw_rows(source), SAMPLED_ROWS)]
    if len(lengths) < min(limit, SAMPLED_ROWS) or limit <= SAMPLED_ROWS:
        return max(len(lengths), 1), sum(lengths) // BYTES_PER_TOKEN
    mean = max(sum(lengths) / len(lengths), 1)
    rows = min(limit, max(int(num_bytes / mean), len(lengths)))
    return rows, int(rows * mean) // BYTES_PER_TOKEN


def _num_bytes(row: Any) -> int:
    return len(row if isinstance(row, bytes) else str(row).encode())
