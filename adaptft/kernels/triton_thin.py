"""Triton kernels of :mod:`adaptft.kernels.thin`: FP8 tiles to tensor cores, sums in a fixed order. GPU only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.quantize import Operand

ROWS, COLUMNS = 64, 128
ADD_ROWS, DOWN_COLUMNS_AT_SMALL_RANKS, SMALL_RANK = 32, 256, 16
"""The fastest of tiles of 32 to 128 rows and 64 to 256 columns for a 7B's gate and up on an H200 (2026-12-01); the
sums of a larger rank would not stay in registers."""
PARTS = 8
"""Into how many parts the summed dimension is cut: enough programs for every processor."""


@triton.jit
def _across_rows(
    x, scale, small, out, rows, columns, stride, part_columns,
    GROUPS: tl.constexpr, PARTS: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group, part = tl.program_id(1) // PARTS, tl.program_id(1) % PARTS
    rank = tl.arange(0, RANK)
    is_row = (row < rows)[:, None]
    x += group * columns
    small += group * columns * RANK
    sums = tl.zeros((ROWS, RANK), tl.float32)
    for start in range(0, part_columns, COLUMNS):
        column = part * part_columns + start + tl.arange(0, COLUMNS)
        is_column = column < columns
        tile = tl.load(x + row[:, None] * stride + column[None, :], mask=is_row & is_column[None, :], other=0.0)
        thin = tl.load(small + column[:, None] * RANK + rank[None, :], mask=is_column[:, None], other=0.0)
        sums += tl.dot(tile.to(thin.dtype), thin)
    sums *= tl.load(scale + row, mask=row < rows, other=0.0)[:, None]
    own = (part.to(tl.int64) * rows + row) * GROUPS + group
    tl.store(out + own[:, None] * RANK + rank[None, :], sums, mask=is_row)


@triton.jit
def _down_columns(
    x, scale, small, out, rows, columns, stride, part_rows,
    GROUPS: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums (RANK, COLUMNS), so that the FP8 tile meets the tensor cores as it lies, not transposed."""
    blocks = tl.cdiv(columns, COLUMNS)
    group = tl.program_id(0) // blocks
    column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1).to(tl.int64)
    rank = tl.arange(0, RANK)
    is_column = (column < columns)[None, :]
    column += group * columns
    sums = tl.zeros((RANK, COLUMNS), tl.float32)
    for start in range(0, part_rows, ROWS):
        row = part * part_rows + start + tl.arange(0, ROWS)
        is_row = row < rows
        tile = tl.load(x + row[:, None] * stride + column[None, :], mask=is_row[:, None] & is_column, other=0.0)
        at = (row * GROUPS + group)[None, :] * RANK + rank[:, None]
        thin = tl.load(small + at, mask=is_row[None, :], other=0.0)
        own = tl.load(scale + row, mask=is_row, other=0.0)
        thin = (thin.to(tl.float32) * own[None, :]).to(small.dtype.element_ty)
        sums += tl.dot(thin, tile.to(thin.dtype))
    at = (part * RANK + rank)[:, None] * (GROUPS * columns) + column[None, :]
    tl.store(out + at, sums, mask=is_column)


@triton.jit
def _add_low_rank(
    y, z, b, largest, rows, columns, y_stride,
    RANGE: tl.constexpr, GROUPS: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(columns, COLUMNS)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1) // blocks
    column = tl.program_id(1) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANK)
    is_row, is_column = row < rows, column < columns
    column += group * columns
    inside = is_row[:, None] & is_column[None, :]
    low = tl.load(z + (row * GROUPS + group)[:, None] * RANK + rank[None, :], mask=is_row[:, None], other=0.0)
    high = tl.load(b + column[None, :] * RANK + rank[:, None], mask=is_column[None, :], other=0.0)
    at = y + row[:, None] * y_stride + column[None, :]
    after = tl.load(at, mask=inside, other=0.0).to(tl.float32) + tl.dot(low, high)
    tl.store(at, after, mask=inside)  # rounded once
    if RANGE:
        tl.store(largest + tl.program_id(1).to(tl.int64) * rows + row, tl.max(tl.abs(after), 1), mask=row < rows)


def _part(total: int, block: int) -> int:
    """Length of a part, in whole blocks."""
    return -(-total // (PARTS * block)) * block


def across_rows_on_gpu(x: Operand, small: Tensor, groups: int) -> Tensor:
    """See :func:`adaptft.kernels.thin.across_rows`."""
    rows, rank, columns = x.values.shape[0], small.shape[1], x.values.shape[1] // groups
    out = torch.empty(PARTS, rows, groups * rank, device=small.device, dtype=torch.float32)
    _across_rows[(triton.cdiv(rows, ROWS), groups * PARTS)](
        x.values, x.scale, small.contiguous(), out, rows, columns, x.values.stride(0), _part(columns, COLUMNS),
        groups, PARTS, rank, ROWS, COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(0).to(small.dtype)


def down_columns_on_gpu(x: Operand, small: Tensor, groups: int) -> Tensor:
    """See :func:`adaptft.kernels.thin.down_columns`."""
    (rows, wide), rank = x.values.shape, small.shape[1] // groups
    block = DOWN_COLUMNS_AT_SMALL_RANKS if rank <= SMALL_RANK else COLUMNS
    out = torch.empty(PARTS, rank, wide, device=small.device, dtype=torch.float32)
    _down_columns[(groups * triton.cdiv(wide // groups, block), PARTS)](
        x.values, x.scale, small.contiguous(), out, rows, wide // groups, x.values.stride(0), _part(rows, ROWS),
        groups, rank, ROWS, block, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.sum(0).t()


def add_low_rank_on_gpu(y: Tensor, z: Tensor, b: Tensor, groups: int) -> None:
    """See :func:`adaptft.kernels.thin.add_low_rank`."""
    _launch_add(y, z, b, groups, None)


def add_low_rank_and_range_on_gpu(y: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """See :func:`adaptft.kernels.thin.add_low_rank_and_range`."""
    largest = torch.empty(triton.cdiv(y.shape[1], COLUMNS), y.shape[0], device=y.device, dtype=torch.float32)
    _launch_add(y, z, b, 1, largest)
    return largest.amax(dim=0).unsqueeze(1)


def _launch_add(y: Tensor, z: Tensor, b: Tensor, groups: int, largest: Tensor | None) -> None:
    rows, columns = y.shape[0], y.shape[1] // groups
    _add_low_rank[(triton.cdiv(rows, ADD_ROWS), groups * triton.cdiv(columns, COLUMNS))](
        y, z.contiguous(), b.contiguous(), largest, rows, columns, y.stride(0),
        largest is not None, groups, b.shape[1], ADD_ROWS, COLUMNS, num_warps=4,
    )  # fmt: skip
