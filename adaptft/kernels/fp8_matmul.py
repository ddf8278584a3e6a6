"""The FP8 matmul, and the three that a trained weight takes part in.

A trained weight stays in 16 or 32 bit and is quantised anew for each pass, row by row, as activations and gradients
are. All scales are powers of two, so that moving one from operand to operand, which each of the three matmuls needs
elsewhere, changes exponents and rounds nothing:

========  ==================  =============================  ==================================================
matmul    summed over         operands                       scales
========  ==================  =============================  ==================================================
forward   inputs              x (T, K), W (N, K)             of the rows of each
dx        outputs             dy (T, N), W^T (K, N)          W's, of its N rows, are folded into dy beforehand
dW        tokens              dy^T (N, T), x^T (K, T)        those of dy and x, of T tokens, are folded into dy^T
========  ==================  =============================  ==================================================

So each value is rounded to e4m3 once, whatever it takes part in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from adaptft.kernels.quantize import (
    Operand,
    empty_operand,
    quantize_rows,
    quantize_rows_into,
    rescale_transposed,
    transpose_fp8,
)
from adaptft.plans import FP8_ALIGNMENT


def fp8_matmul(
    x: Tensor, rows: Tensor, x_scale: Tensor, row_scale: Tensor | None, dtype: torch.dtype, *, fast_accum: bool = True
) -> Tensor:
    """(T, K) and (N, K), both e4m3, -> (T, N). Off the GPU, where there is no such matmul, in float32.

    Args:
        x_scale: (T, 1) float32.
        row_scale: (1, N) float32; None where it is folded into ``x``.
        dtype: bf16 on the GPU.
        fast_accum: sum in the tensor core's own registers, which keep fewer bits than float32.
    """
    if row_scale is None:
        row_scale = x_scale.new_ones(1, rows.shape[0])
    if not x.is_cuda:
        return ((x.float() * x_scale) @ (rows.float() * row_scale.t()).t()).to(dtype)
    return torch._scaled_mm(x, rows.t(), scale_a=x_scale, scale_b=row_scale, out_dtype=dtype, use_fast_accum=fast_accum)


def quantize_weights(weights: Sequence[Tensor]) -> Operand:
    """The weights of layers that share an input, one under the other: (N, K) e4m3 and (N, 1)."""
    rows = [len(weight) for weight in weights]
    whole = empty_operand(sum(rows), weights[0].shape[1], weights[0].device)
    parts = zip(torch.split(whole.values, rows), torch.split(whole.fp8_scale, rows), weights, strict=True)
    for values, scale, weight in parts:
        quantize_rows_into(Operand(values, scale), weight, whole_powers=True)
    return whole


def quantize_gradient(gradient: Tensor, weight: Operand) -> Operand:
    """(T, N), with the scales of W folded in."""
    return quantize_rows(gradient, weight.fp8_scale.t().contiguous(), whole_powers=True)


def forward(x: Operand, weight: Operand, dtype: torch.dtype) -> Tensor:
    """(T, K) -> (T, N): ``x W^T``."""
    return fp8_matmul(x.values, weight.values, x.fp8_scale, weight.fp8_scale.t().contiguous(), dtype)


def input_gradient(gradient: Operand, weight: Operand, dtype: torch.dtype) -> Tensor:
    """(T, N) -> (T, K): ``dy W``; ``gradient`` comes with W's scales folded in."""
    return fp8_matmul(gradient.values, transpose_fp8(weight.values), gradient.fp8_scale, None, dtype)


def weight_gradient(gradient: Operand, x: Operand, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """(T, N) and (T, K) -> (N, K): ``dy^T x``; ``gradient`` comes with ``weight_scale`` (N, 1) folded in.

    Tokens weigh in by ``dy``'s scale times ``x``'s. The largest of these is taken out, so that the values of its token
    keep all their bits; those of a token that weighs 2^-n of it have n fewer of the 15 exponents of e4m3's normal
    numbers.
    """
    weights = gradient.fp8_scale * x.fp8_scale
    largest = weights.amax()
    by_output = rescale_transposed(_aligned(gradient.values), _aligned(weights / largest))
    by_input = transpose_fp8(_aligned(x.values))
    return fp8_matmul(by_output, by_input, largest / weight_scale, None, dtype, fast_accum=False)  # sums of all tokens


def _aligned(rows: Tensor) -> Tensor:
    """Rows of zeros below, up to a number that can be summed over."""
    missing = -rows.shape[0] % FP8_ALIGNMENT
    if not missing:
        return rows
    padded = pad(rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows, (0, 0, 0, missing))
    return padded.view(rows.dtype)
