"""The Triton kernel of :mod:`adaptft.kernels.rounding`. Imported on a GPU only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.rounding import LARGEST_CODE, SIGN, Inputs

SIGN_BIT = tl.constexpr(SIGN)
LAST_CODE = tl.constexpr(LARGEST_CODE)
ROWS = 64
"""Outputs of a program; each of its lanes goes through all inputs of one."""


@triton.jit
def _round(weight, scale, mean, variance, codes, rows, columns, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    inverse = 1.0 / tl.load(scale + row, mask=inside, other=1.0)
    left = tl.zeros((ROWS,), tl.float32)
    place = row.to(tl.int64)
    for k in range(columns):
        m, v = tl.load(mean + k), tl.load(variance + k)
        wanted = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32) * inverse
        near = wanted.to(tl.float8e4nv)
        code = near.to(tl.uint8, bitcast=True).to(tl.int32)
        size, sign = code & (SIGN_BIT - 1), code & SIGN_BIT
        is_below = tl.abs(wanted) > tl.abs(near.to(tl.float32))
        other_size = tl.minimum(tl.maximum(tl.where(is_below, size + 1, size - 1), 0), LAST_CODE)
        other_code = (sign | other_size).to(tl.uint8)
        error = near.to(tl.float32) - wanted
        other_error = other_code.to(tl.float8e4nv, bitcast=True).to(tl.float32) - wanted
        after, other_after = left + m * error, left + m * other_error
        farther = v * other_error * other_error + other_after * other_after < v * error * error + after * after
        farther = farther & (size != LAST_CODE)
        left = tl.where(farther, other_after, after)
        tl.store(codes + place, tl.where(farther, other_code, code.to(tl.uint8)), mask=inside)
        place += rows


def round_on_gpu(columns: Tensor, scale: Tensor, inputs: Inputs) -> Tensor:
    """(K, N) weights, (N,) scales -> (K, N), the codes of e4m3."""
    count, rows = columns.shape
    codes = torch.empty(count, rows, dtype=torch.uint8, device=columns.device)
    with torch.cuda.device(columns.device):
        _round[(triton.cdiv(rows, ROWS),)](columns, scale, *inputs, codes, rows, count, ROWS, num_warps=ROWS // 32)
    return codes
