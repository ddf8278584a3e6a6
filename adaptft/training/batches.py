"""Rows to micro-batches: in which order, on which rank, and in which form the model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from adaptft.kernels.linear_cross_entropy import IGNORED

Row = dict[str, NDArray[np.int64]]
Form = Literal["padded", "packed", "flat"]
PAD_MULTIPLE = 64
"""Lengths of padded and flat batches are rounded up to this: fewer shapes, and tensor cores like them."""
LONGEST_FLOOR = 2048
"""Documents up to this length share one bound, so that the kernel's launch seldom changes."""
LENGTHS_AT_A_TIME = 65536


class Rows(Dataset[Row]):
    """Rows of a ``datasets.Dataset`` as arrays: ``input_ids``, ``labels`` (not shifted), ``position_ids``.

    Takes packs, and single rows with ``trained`` flags. Index ``-1 - i`` is row ``i`` with nothing trained in it: a
    rank that has run out of rows computes it so that all ranks take the same number of micro-batches.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows.with_format("numpy")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        columns = self._rows[index if index >= 0 else -1 - index]
        ids = columns["input_ids"].astype(np.int64)
        if "labels" in columns:
            labels, positions = columns["labels"].astype(np.int64), columns["position_ids"].astype(np.int64)
        else:
            labels = np.where(columns["trained"].astype(bool), ids, IGNORED)
            labels[:1] = IGNORED  # nothing stands before the first token that could predict it
            positions = np.arange(len(ids))
        if index < 0:
            labels = np.full_like(labels, IGNORED)
        return {"input_ids": ids, "labels": labels, "position_ids": positions}

    def longest(self, count: int) -> list[int]:
        """Indices of the ``count`` rows (or all) with the most tokens, longest first."""
        table = self._rows.with_format("arrow").select_columns(["input_ids"])
        lengths = [pc.list_value_length(part["input_ids"]).to_numpy() for part in table.iter(LENGTHS_AT_A_TIME)]
        order = np.argsort(np.concatenate(lengths), kind="stable")[::-1]
        return [int(index) for index in order[:count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collator:
    """Rows to one micro-batch.

    ``packed``: every row is filled up to ``length``; the filling is a document of its own.
    ``padded``: rows are filled up to the longest; causal attention never looks at the filling, so no mask is needed.
    ``flat``: rows follow each other in one sequence without filling; needs attention that knows documents.
    """

    form: Form
    length: int
    with_boundaries: bool
    """Add ``cu_seq_lens_q`` and ``max_length_q``, which the variable-length kernel takes."""

    def __call__(self, rows: Sequence[Row]) -> dict[str, Any]:
        """-> ``input_ids``, ``labels`` (shifted), ``position_ids`` of (rows, length), and the counts ``num_tokens``,
        ``num_trained`` as plain numbers, so that counting never waits for the GPU."""
        num_tokens = sum(len(row["input_ids"]) for row in rows)
        if self.form == "flat":
            rows = [{name: np.concatenate([row[name] for row in rows]) for name in rows[0]}]
        length = self._length(max(len(row["input_ids"]) for row in rows))
        restart = self.form != "padded"
        ids = np.zeros((len(rows), length), dtype=np.int64)
        labels = np.full((len(rows), length), IGNORED, dtype=np.int64)
        positions = np.zeros((len(rows), length), dtype=np.int64)
        for number, row in enumerate(rows):
            used = len(row["input_ids"])
            ids[number, :used] = row["input_ids"]
            labels[number, : used - 1] = row["labels"][1:]
            positions[number, :used] = row["position_ids"]
            positions[number, used:] = np.arange(length - used) + (0 if restart else used)
        arrays = {"input_ids": ids, "labels": labels, "position_ids": positions}
        batch: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.with_boundaries:
            batch |= boundaries(positions)
        return batch | {"num_tokens": num_tokens, "num_trained": num_trained(batch["labels"])}

    def _length(self, longest: int) -> int:
        if self.form == "packed":
            return max(self.length, longest)
        return -(-longest // PAD_MULTIPLE) * PAD_MULTIPLE


def num_trained(labels: Tensor) -> int:
    """How many of ``labels`` are in the loss."""
    return int((labels != IGNORED).sum())


def boundaries(position_ids: NDArray[np.int64]) -> dict[str, Any]:
    """Document boundaries of a batch (rows, length), in transformers' names for packed attention.

    Empty where every row is one document: attention then needs none, and a faster kernel serves.
    """
    if not (position_ids[:, 1:] == 0).any():
        return {}
    flat = position_ids.reshape(-1)
    edges = np.append(np.flatnonzero(flat == 0), len(flat)).astype(np.int32)
    longest = int(np.diff(edges).max())
    bound = max(1 << (longest - 1).bit_length(), min(LONGEST_FLOOR, position_ids.shape[1]))
    return {"cu_seq_lens_q": torch.from_numpy(edges), "max_length_q": bound}


class MicroBatches(Sampler[list[int]]):
    """The rows of each micro-batch of one rank.

    The order of an epoch depends on the seed and the epoch alone. Consecutive micro-batches are dealt to the ranks in
    turn, so an optimizer step takes the same rows whatever the micro-batch, the accumulation or the number of
    ranks is, as long as their product stays.
    """

    def __init__(
        self, num_rows: int, micro_batch_size: int, *, seed: int | None, rank: int = 0, num_ranks: int = 1
    ) -> None:
        self.num_rows, self.micro_batch_size, self.seed = num_rows, micro_batch_size, seed
        self.rank, self.num_ranks, self.epoch = rank, num_ranks, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        num_batches = -(-self.num_rows // self.micro_batch_size)
        return -(-num_batches // self.num_ranks)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        size = self.micro_batch_size
        for number in range(len(self)):
            start = (number * self.num_ranks + self.rank) * size
            yield order[start : start + size] or [-1 - order[0]]

    def _order(self) -> list[int]:
        if self.seed is None:
            return list(range(self.num_rows))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(self.num_rows, generator=generator).tolist()
        return order


class EpochLoader(DataLoader[Row]):
    """A loader that passes the epoch on to its sampler, as transformers' loop asks."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        sampler = self.batch_sampler
        if isinstance(sampler, MicroBatches):
            sampler.set_epoch(epoch)


def loader(rows: Rows, batches: MicroBatches, collator: Collator, *, pinned: bool, num_workers: int = 0) -> EpochLoader:
    """Micro-batches, in pinned memory where they go to a GPU, made ahead by ``num_workers`` processes.

    Each pass over a torch loader draws a seed for its workers, which need none here. A generator of its own keeps that
    off the global one: how often rows are read must not change the dropout of later steps.
    """
    ahead: dict[str, Any] = {"prefetch_factor": 4, "persistent_workers": True} if num_workers else {}
    return EpochLoader(
        rows, batch_sampler=batches, collate_fn=collator, pin_memory=pinned, num_workers=num_workers,
        generator=torch.Generator(), **ahead,
    )  # fmt: skip
