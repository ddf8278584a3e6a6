"""Rows to FP8 (e4m3) and FP8 weights transposed: Triton on the GPU, the same arithmetic in torch elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

E4M3_MAX = 448.0
SMALLEST_SCALE = 1e-12
MANTISSA_BITS = 0x7FFFFF
"""Of a float32; the exponent is above them."""


class Operand(NamedTuple):
    """One side of a matmul."""

    values: Tensor
    """(rows, columns), in 16 bit or more, or e4m3."""
    scale: Tensor | None
    """(rows, 1) float32 where the values are e4m3: ``values * scale`` is what they stand for."""

    @property
    def fp8_scale(self) -> Tensor:
        """The scale of values that are known to be e4m3."""
        assert self.scale is not None
        return self.scale


def quantize_rows(x: Tensor, column_factor: Tensor | None = None, *, whole_powers: bool = False) -> Operand:
    """(rows, columns) -> e4m3 of the same shape, with float32 scales such that ``x * factor ~= values * scale``.

    Args:
        x: (rows, columns), any float type.
        column_factor: (1, columns) float32, multiplied in before quantising. Folding the row scales of a weight
            into the gradient that meets it is exact algebra: ``dy (diag(s) Q) = (dy diag(s)) Q``.
        whole_powers: scales are powers of two, so that other such scales can be multiplied into the values later on
            without a second rounding (:func:`rescale_transposed`).
    """
    rows, columns = x.shape
    out = empty_operand(rows, columns, x.device)
    quantize_rows_into(out, x, column_factor, whole_powers=whole_powers)
    return out


def quantize_rows_into(
    out: Operand, x: Tensor, column_factor: Tensor | None = None, *, whole_powers: bool = False
) -> None:
    """The same, written to ``out``, whose rows may be some of a larger operand's."""
    if x.is_cuda:
        from adaptft.kernels.triton_fp8 import quantize_rows_on_gpu

        quantize_rows_on_gpu(out, x, column_factor, whole_powers=whole_powers)
        return
    values = x.float() if column_factor is None else x.float() * column_factor
    quantized = quantize_by(values, values.abs().amax(dim=1, keepdim=True), whole_powers=whole_powers)
    out.values.copy_(quantized.values)
    out.fp8_scale.copy_(quantized.fp8_scale)


def empty_operand(rows: int, columns: int, device: torch.device) -> Operand:
    """One to be filled, in e4m3."""
    values = torch.empty(rows, columns, device=device, dtype=torch.float8_e4m3fn)
    return Operand(values, torch.empty(rows, 1, device=device, dtype=torch.float32))


def quantize_by(values: Tensor, largest: Tensor, *, whole_powers: bool = False) -> Operand:
    """Rows to e4m3 in torch, by what no value of a row is larger than: (rows, columns) and (rows, 1)."""
    scale = (largest.float() / E4M3_MAX).clamp(min=SMALLEST_SCALE)
    scale = next_power_of_two(scale) if whole_powers else scale
    return Operand((values.float() / scale).to(torch.float8_e4m3fn), scale)


def next_power_of_two(x: Tensor) -> Tensor:
    """The smallest power of two that is not smaller, of normal positive float32."""
    bits = x.contiguous().view(torch.int32) + MANTISSA_BITS
    return (bits & ~MANTISSA_BITS).view(torch.float32)


def rescale_transposed(values: Tensor, row_factor: Tensor) -> Tensor:
    """(rows, columns) e4m3 and (rows, 1) float32 -> (columns, rows) e4m3 of ``values * row_factor``.

    Exact for factors that are powers of two and at most 1, but for what falls below the smallest numbers of e4m3.
    """
    if values.is_cuda:
        from adaptft.kernels.triton_fp8 import rescale_transposed_on_gpu

        return rescale_transposed_on_gpu(values, row_factor)
    return (values.float() * row_factor).t().contiguous().to(torch.float8_e4m3fn)


def transpose_fp8(weight: Tensor) -> Tensor:
    """(rows, columns) e4m3 -> (columns, rows), contiguous.

    torch's own copy of a transposed byte matrix runs at 0.3 TB/s on an H200; tiles through shared memory at ten
    times that.
    """
    if weight.is_cuda:
        from adaptft.kernels.triton_fp8 import transpose_fp8_on_gpu

        return transpose_fp8_on_gpu(weight)
    return weight.t().contiguous()
