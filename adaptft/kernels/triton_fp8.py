"""Triton kernels that make FP8: rows quantised, weights transposed, NF4 unpacked. Imported on a GPU only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.quantize import E4M3_MAX, MANTISSA_BITS, SMALLEST_SCALE, Operand

E4M3_LARGEST = tl.constexpr(E4M3_MAX)
LEAST_SCALE = tl.constexpr(SMALLEST_SCALE)
MANTISSA = tl.constexpr(MANTISSA_BITS)
TILE = 128
MOST_BY_4_WARPS = 32768
"""Values of a row; more of them do not fit their registers."""


@triton.jit
def scale_of(largest, WHOLE_POWERS: tl.constexpr):
    """The scale of what is at most ``largest``; see :func:`adaptft.kernels.quantize.quantize_by`."""
    scale = tl.maximum(largest / E4M3_LARGEST, LEAST_SCALE)
    if WHOLE_POWERS:
        scale = ((scale.to(tl.int32, bitcast=True) + MANTISSA) & ~MANTISSA).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def _quantize_row(
    x, factor, out, scale, columns, stride,
    HAS_FACTOR: tl.constexpr, WHOLE_POWERS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_FACTOR:
        values *= tl.load(factor + column, mask=inside, other=0.0)
    own = scale_of(tl.max(tl.abs(values), 0), WHOLE_POWERS)
    tl.store(scale + row, own)
    inverse = 1.0 / own  # dividing each value takes several instructions
    tl.store(out + row * columns + column, (values * inverse).to(tl.float8e4nv), mask=inside)


def quantize_rows_on_gpu(out: Operand, x: Tensor, column_factor: Tensor | None, *, whole_powers: bool) -> None:
    """See :func:`adaptft.kernels.quantize.quantize_rows_into`; a program holds a whole row in its registers."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    warps = 4 if block <= MOST_BY_4_WARPS else 16
    has_factor = column_factor is not None
    _quantize_row[(rows,)](
        x, column_factor, *out, columns, x.stride(0), has_factor, whole_powers, block, num_warps=warps
    )


@triton.jit
def _transpose(x, factor, out, rows, columns, HAS_FACTOR: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tile = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0)
    if HAS_FACTOR:
        values = tile.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        values *= tl.load(factor + row, mask=row < rows, other=0.0)[:, None]
        tile = values.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    tl.store(out + column[:, None] * rows + row[None, :], tl.trans(tile), mask=tl.trans(inside))


def transpose_fp8_on_gpu(values: Tensor) -> Tensor:
    """See :func:`adaptft.kernels.quantize.transpose_fp8`."""
    return _transposed(values, None)


def rescale_transposed_on_gpu(values: Tensor, row_factor: Tensor) -> Tensor:
    """See :func:`adaptft.kernels.quantize.rescale_transposed`."""
    return _transposed(values, row_factor)


def _transposed(values: Tensor, row_factor: Tensor | None) -> Tensor:
    rows, columns = values.shape
    out = torch.empty(columns, rows, device=values.device, dtype=values.dtype)
    grid = (triton.cdiv(rows, TILE), triton.cdiv(columns, TILE))
    _transpose[grid](
        values.view(torch.uint8), row_factor, out.view(torch.uint8), rows, columns, row_factor is not None, TILE,
        num_warps=8,
    )  # fmt: skip
    return out
