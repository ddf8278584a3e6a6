"""A micro-batch in smaller parts that give the same loss: rows first, then the documents of one row.

Attention stays inside a document and the loss is a sum over tokens, so that the parts' losses and gradients add up to
those of the whole (up to the order in which floating-point numbers are added).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptft.training.batches import boundaries, num_trained

Batch = dict[str, Any]
TENSORS = ("input_ids", "labels", "position_ids")


def num_tokens(batch: Batch) -> int:
    """Positions that are computed, filling included."""
    ids: Tensor = batch["input_ids"]
    return ids.numel()


def halves(batch: Batch) -> tuple[Batch, Batch] | None:
    """``batch`` in two parts of about the same size; None where it is a single document."""
    num_rows, length = batch["input_ids"].shape
    if num_rows > 1:
        return _part(batch, slice(0, num_rows // 2), slice(None)), _part(batch, slice(num_rows // 2, None), slice(None))
    starts = torch.nonzero(batch["position_ids"][0] == 0).flatten().tolist()[1:]
    if not starts:
        return None
    middle = min(starts, key=lambda start: abs(start - length / 2))
    return _part(batch, slice(None), slice(0, middle)), _part(batch, slice(None), slice(middle, None))


def within(batch: Batch, most_tokens: int | None) -> list[Batch]:
    """``batch`` in parts of at most ``most_tokens``, where documents are that short; itself without a limit."""
    if most_tokens is None or num_tokens(batch) <= most_tokens or (two := halves(batch)) is None:
        return [batch]
    return [part for half in two for part in within(half, most_tokens)]


def _part(batch: Batch, rows: slice, columns: slice) -> Batch:
    """Documents begin at position 0 in each part, as they do in the whole."""
    part: Batch = {name: batch[name][rows, columns].contiguous() for name in TENSORS}
    if "cu_seq_lens_q" in batch:
        part |= boundaries(part["position_ids"].cpu().numpy())
    return part | {"num_trained": num_trained(part["labels"])}
