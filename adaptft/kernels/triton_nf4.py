"""NF4 to FP8 in one pass over the weight: half a byte read, one byte written. Imported on a GPU only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.nf4 import BLOCK, OUTER_BLOCK

NF4_OUTER_BLOCK = tl.constexpr(OUTER_BLOCK)
HALF_BLOCK = tl.constexpr(BLOCK // 2)
ROWS, BLOCKS = 32, 4
"""Tile: rows, and blocks of 64 weights in each."""


@triton.jit
def _unpack(
    packed, absmax, code, outer, offset, levels, row_scale, out, rows, num_blocks, out_stride,
    NESTED: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    inside = (row < rows)[:, None] & (block < num_blocks)[None, :]
    number = row[:, None] * num_blocks + block[None, :]
    if NESTED:
        scale = tl.load(code + tl.load(absmax + number, mask=inside, other=0).to(tl.int32))
        scale = scale * tl.load(outer + number // NF4_OUTER_BLOCK, mask=inside, other=0.0) + tl.load(offset)
    else:
        scale = tl.load(absmax + number, mask=inside, other=0.0)
    scale = scale / tl.load(row_scale + row, mask=row < rows, other=1.0)[:, None]
    pair = number[:, :, None] * HALF_BLOCK + tl.arange(0, HALF_BLOCK)[None, None, :]
    both = tl.load(packed + pair, mask=inside[:, :, None], other=0).to(tl.int32)
    first = (tl.load(levels + (both >> 4)) * scale[:, :, None]).to(tl.float8e4nv)
    second = (tl.load(levels + (both & 15)) * scale[:, :, None]).to(tl.float8e4nv)
    tile = tl.reshape(tl.interleave(first, second), (ROWS, BLOCKS * 2 * HALF_BLOCK))
    column = tl.program_id(1) * BLOCKS * 2 * HALF_BLOCK + tl.arange(0, BLOCKS * 2 * HALF_BLOCK)
    inside = (row < rows)[:, None] & (column < num_blocks * 2 * HALF_BLOCK)[None, :]
    if TRANSPOSED:
        at = column[:, None].to(tl.int64) * out_stride + row[None, :]
        tl.store(out + at, tl.trans(tile), mask=tl.trans(inside))
    else:
        tl.store(out + row[:, None] * out_stride + column[None, :], tile, mask=inside)


def dequantize_to_fp8_on_gpu(
    layers: list[list[Tensor]], out_features: list[int], in_features: int, row_scale: Tensor, *, transposed: bool
) -> Tensor:
    """See :func:`adaptft.kernels.nf4.dequantize_to_fp8`."""
    total = sum(out_features)
    shape = (in_features, total) if transposed else (total, in_features)
    out = torch.empty(shape, device=row_scale.device, dtype=torch.float8_e4m3fn)
    levels = _levels(row_scale.device)
    start = 0
    for layer, rows in zip(layers, out_features, strict=True):
        nested = len(layer) > 2
        packed, absmax, *rest = layer
        code, outer, offset = rest if nested else (absmax, absmax, absmax)
        part = out[:, start:] if transposed else out[start:]
        num_blocks = in_features // BLOCK
        tile_rows = 128 if transposed else ROWS  # a column of the tile is a row of what is written
        blocks = 1 if transposed else BLOCKS
        grid = (triton.cdiv(rows, tile_rows), triton.cdiv(num_blocks, blocks))
        _unpack[grid](
            packed, absmax, code, outer, offset, levels, row_scale.view(-1)[start:], part, rows, num_blocks,
            out.stride(0), nested, transposed, tile_rows, blocks, num_warps=4,
        )  # fmt: skip
        start += rows
    return out


_LEVELS: dict[torch.device, Tensor] = {}


def _levels(device: torch.device) -> Tensor:
    """The 16 values of NF4, as bitsandbytes has them."""
    if device not in _LEVELS:
        from bitsandbytes.functional import get_4bit_type

        _LEVELS[device] = get_4bit_type("nf4", device=device).float()
    return _LEVELS[device]
