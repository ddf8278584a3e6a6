"""Rows and packs as batches of tensors. All shapes are ``[batch, length]`` unless said otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adaptft.data.packing import IGNORED

if TYPE_CHECKING:
    import torch

Example = Mapping[str, Any]


def collate_rows(
    rows: Sequence[Example], pad_token_id: int, *, multiple_of: int = 1, length: int | None = None
) -> dict[str, torch.Tensor]:
    """Unpacked rows (``input_ids``, ``trained``), padded on the right.

    Gives ``input_ids``, ``attention_mask``, ``labels`` and ``position_ids`` (all int64); the first
    token of a row and padding have the label -100.

    Args:
        multiple_of: the length is rounded up to a multiple of this.
        length: pad to this many tokens instead of to the longest row.
    """
    import torch

    sizes = [len(row["input_ids"]) for row in rows]
    shape = (len(rows), length or _rounded(max(sizes), multiple_of))
    input_ids = torch.full(shape, pad_token_id, dtype=torch.int64)
    labels = torch.full(shape, IGNORED, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.int64)
    for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        ids = torch.as_tensor(row["input_ids"], dtype=torch.int64)
        trained = torch.as_tensor(row["trained"], dtype=torch.bool)
        input_ids[index, :size] = ids
        labels[index, :size] = torch.where(trained, ids, IGNORED)
        mask[index, :size] = 1
    labels[:, 0] = IGNORED
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels, "position_ids": positions}


def collate_packs(
    packs: Sequence[Example], pad_token_id: int, *, multiple_of: int = 1, length: int | None = None
) -> dict[str, Any]:
    """Packs (``input_ids``, ``labels``, ``position_ids``), padded on the right by a document of padding.

    Besides the three columns (int64) it gives what a variable-length attention kernel takes for the
    batch flattened to ``batch * length`` tokens: ``cu_seq_lens`` (int32) and ``max_seq_len``.
    There is no attention_mask: the boundaries say it all.
    """
    import torch

    sizes = [len(row["input_ids"]) for row in packs]
    shape = (len(packs), length or _rounded(max(sizes), multiple_of))
    fill = {"input_ids": pad_token_id, "labels": IGNORED, "position_ids": 0}
    batch: dict[str, Any] = {name: torch.full(shape, value, dtype=torch.int64) for name, value in fill.items()}
    for index, (row, size) in enumerate(zip(packs, sizes, strict=True)):
        for name in fill:
            batch[name][index, :size] = torch.as_tensor(row[name], dtype=torch.int64)
        batch["position_ids"][index, size:] = torch.arange(shape[1] - size)
    batch["cu_seq_lens"], batch["max_seq_len"] = document_boundaries(batch["position_ids"])
    return batch


def document_boundaries(position_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Where documents begin in the flattened batch, and the longest one's tokens.

    A document begins wherever a position is 0, and at the start of every sequence. The first value is
    int32 ``[documents + 1]`` and begins with 0 and ends with the number of tokens (``cu_seq_lens``).
    """
    import torch

    positions = position_ids if position_ids.dim() == 2 else position_ids.reshape(1, -1)
    begins = positions == 0
    begins = torch.cat([torch.ones_like(begins[:, :1]), begins[:, 1:]], dim=1).reshape(-1)
    starts = torch.nonzero(begins).reshape(-1)
    ends = torch.tensor([begins.numel()], device=starts.device)
    boundaries = torch.cat([starts, ends]).to(torch.int32)
    return boundaries, int((boundaries[1:] - boundaries[:-1]).max()) if begins.numel() else 0


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
