"""Parquet and Arrow files, and tables of the hubs: read in batches, never whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from adaptft.errors import DataError

_BATCH_ROWS = 512


def parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers (from 1).

    Raises:
        DataError: it is no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield from numbered(file.iter_batches(batch_size=_BATCH_ROWS))
    except pa.ArrowException as cause:
        raise _unreadable(path, "Parquet", cause) from cause


def arrow_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows of an Arrow file, in the stream form (as ``datasets`` writes it) or the file form.

    Raises:
        DataError: it is no Arrow file.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            try:
                reader: Any = pa.ipc.open_stream(source)
            except pa.ArrowInvalid:
                source.seek(0)
                file = pa.ipc.open_file(source)
                reader = (file.get_batch(index) for index in range(file.num_record_batches))
            yield from numbered(part for batch in reader for part in _slices(batch))
    except pa.ArrowException as cause:
        raise _unreadable(path, "Arrow", cause) from cause


def _slices(batch: Any) -> Iterator[Any]:
    for start in range(0, batch.num_rows, _BATCH_ROWS):
        yield batch.slice(start, _BATCH_ROWS)


def numbered(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Rows of Arrow batches or tables with their numbers, without the nulls that columns of structs are filled with.

    A struct has every key that any row has: a call's ``{"sku": "K-17"}`` comes back with a null for
    each argument of every other tool. Those nulls were never written by anyone.
    """
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield number, {key: _without_nulls(value) for key, value in row.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _unreadable(path: Path, form: str, cause: Exception) -> DataError:
    reason = str(cause).splitlines()[0]
    return DataError(f"Cannot read {path} as {form}: {reason.rstrip('.')}.", fix="Check that the file is whole.")
