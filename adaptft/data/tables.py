"""Rows of integers as Arrow files: written batch by batch, read back memory-mapped, measured without copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from numpy.typing import NDArray

Columns = Mapping[str, str]
_PROFILE_PARTS = 20
TOKENS: Columns = {"input_ids": "int32", "trained": "bool"}
PACKS: Columns = {"input_ids": "int32", "labels": "int32", "position_ids": "int32"}


class TableWriter:
    """Appends batches of rows to an open Arrow file."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self.writer = writer
        self.schema = schema

    def write(self, lengths: NDArray[np.int32], columns: Mapping[str, NDArray[Any]]) -> None:
        """Append ``len(lengths)`` rows; each column holds their values end to end."""
        import numpy as np
        import pyarrow as pa

        if len(lengths) == 0:
            return
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32)
        kinds = {field.name: field.type.value_type for field in self.schema}
        arrays = [
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(columns[name]).cast(kind))
            for name, kind in kinds.items()
        ]
        self.writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self.schema))


@contextmanager
def table_writer(path: Path, columns: Columns) -> Iterator[TableWriter]:
    """An Arrow file at ``path`` whose columns are lists, in the form that ``datasets`` memory-maps."""
    import datasets
    import pyarrow as pa

    features = datasets.Features({name: datasets.List(datasets.Value(kind)) for name, kind in columns.items()})
    schema = features.arrow_schema
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        yield TableWriter(writer, schema)


def row_lengths(rows: datasets.Dataset) -> NDArray[np.int64]:
    """Tokens of every row, in order, from the Arrow offsets."""
    import numpy as np
    import pyarrow.compute as pc

    lengths = pc.list_value_length(rows.data.column("input_ids"))
    values = np.asarray(lengths.to_numpy(), dtype=np.int64)
    if rows._indices is None:
        return values
    order: NDArray[np.int64] = rows._indices.column(0).to_numpy()
    return values[order]


def length_profile(lengths: NDArray[np.int64] | NDArray[np.int32]) -> tuple[float, ...]:
    """``DatasetShape.length_profile`` of rows of these lengths; empty where there are none."""
    import numpy as np

    parts = np.array_split(np.sort(lengths), min(_PROFILE_PARTS, len(lengths))) if len(lengths) else []
    return tuple(round(float(part.mean()), 1) for part in parts)


def trained_counts(rows: datasets.Dataset, *, batch_rows: int = 8192) -> NDArray[np.int64]:
    """Tokens in the loss of every row."""
    import numpy as np

    counts = [np.add.reduceat(trained, starts) for starts, (_, trained) in batches(rows, batch_rows)]
    return np.concatenate(counts).astype(np.int64) if counts else np.zeros(0, np.int64)


def batches(rows: datasets.Dataset, batch_rows: int) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """Rows end to end, some at a time: their starts, and ``(input_ids, trained)`` as flat arrays."""
    import numpy as np

    arrow = rows.with_format("arrow")
    for start in range(0, len(rows), batch_rows):
        lengths, ids, trained = flat(arrow[start : start + batch_rows])
        yield np.concatenate(([0], np.cumsum(lengths)[:-1])), (ids, trained.astype(np.int64))


def flat(table: Any) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
    """An Arrow table of token rows as lengths, flat ids and flat mask."""
    import numpy as np
    import pyarrow.compute as pc

    ids, trained = table.column("input_ids").combine_chunks(), table.column("trained").combine_chunks()
    lengths = np.asarray(pc.list_value_length(ids).to_numpy(zero_copy_only=False), dtype=np.int64)
    return lengths, ids.flatten().to_numpy(zero_copy_only=False), trained.flatten().to_numpy(zero_copy_only=False)
