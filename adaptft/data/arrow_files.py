"""Parquet and Arrow files, and tables of the hubs: read in batches, never whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from adaptft.data.conversation import printable
from adaptft.errors import DataError

_BATCH_ROWS = 512
_DAMAGE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, NotImplementedError, MemoryError)
"""What Arrow raises for files that are damaged, or hold values that Python has no form for."""


def parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers (from 1).

    Raises:
        DataError: it is no Parquet file.
    """
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _refuse_doubles(file.schema_arrow.names, path)
            yield from numbered(file.iter_batches(batch_size=_BATCH_ROWS))
    except _DAMAGE as cause:
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
            yield from numbered(_whole(part) for batch in reader for part in _slices(batch))
    except _DAMAGE as cause:
        raise _unreadable(path, "Arrow", cause) from cause


def _whole(batch: Any) -> Any:
    """The batch, once its offsets and texts are known to be sound: Arrow itself trusts what it maps."""
    batch.validate(full=True)
    return batch


def _refuse_doubles(names: list[str], path: Path) -> None:
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise DataError(
            f"{path} has more than one column named {printable(', '.join(doubles))}.",
            fix="Rename or delete all but one of them: which one holds the text cannot be guessed.",
        )


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
        labels = _class_names((batch.schema.metadata or {}).get(b"huggingface", b"{}"))
        for row in batch.to_pylist():
            number += 1
            row = {key: _without_nulls(value) for key, value in row.items()}
            yield number, row | {key: names.get(row[key], row[key]) for key, names in labels.items() if key in row}


@lru_cache
def _class_names(metadata: bytes) -> dict[str, dict[int, str]]:
    """Columns of class labels, which ``datasets`` stores as numbers, with the names of the classes."""
    try:
        features = json.loads(metadata)["info"]["features"]
        return {
            column: dict(enumerate(feature["names"]))
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, LookupError, TypeError, AttributeError):  # another program's metadata
        return {}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def _unreadable(path: Path, form: str, cause: Exception) -> DataError:
    reason = printable((str(cause) or type(cause).__name__).splitlines()[0])[:200]
    return DataError(f"Cannot read {path} as {form}: {reason.rstrip('.')}.", fix="Check that the file is whole.")
