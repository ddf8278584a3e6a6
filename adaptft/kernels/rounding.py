"""A frozen weight in FP8, rounded by what its layer gets.

To the nearest, each weight has the smallest error of its own; but inputs of a trained model have channels that are far
from zero for every token, and what the errors of their weights add up to is the same in each: up to 70 % of the error
of a layer, and one that an adapter learns to undo. With inputs of mean m and variance v by channel, taken as
independent, the mean squared error of an output is

    sum_k v_k e_k^2 + (sum_k m_k e_k)^2

where e are the errors of its weights. Both neighbours of each weight are tried, channels with large means first, so
that the many small ones that follow cancel what is left: one in ten weights goes to its farther neighbour. (The greedy
order is the one of Zhang et al. 2023, "Post-training Quantization for Neural Networks with Provable Guarantees", for
this two-term error.) It costs nothing once the weights are made.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaptft.kernels.quantize import E4M3_MAX, Operand, empty_operand, quantize_rows
from adaptft.plans import WEIGHTS_ROUNDED_AT_A_TIME

SIGN, LARGEST_CODE = 0x80, 0x7E
"""Of e4m3: the bit, and 448's code, above which there is no number."""


class Inputs(NamedTuple):
    """What a linear layer gets, by channel: (K,) float32 each."""

    mean: Tensor
    variance: Tensor


def quantize_rows_for(weight: Tensor, inputs: Inputs, scale: Tensor | None = None) -> Operand:
    """(N, K) in 16 or 32 bit -> e4m3 and scales (N, 1), rounded so that ``inputs`` meet the least error.

    The largest weight of a row stays 448, so that whoever quantises the rounded row finds the same scale.

    Args:
        scale: (N, 1), to be kept; else the row's largest weight becomes 448.
    """
    outputs, channels = weight.shape
    out = empty_operand(outputs, channels, weight.device)
    order = inputs.mean.abs().argsort(descending=True)
    back = order.argsort()
    sorted_inputs = Inputs(inputs.mean[order].contiguous(), inputs.variance[order].contiguous())
    rows = max(WEIGHTS_ROUNDED_AT_A_TIME // channels, 1)
    for start in range(0, outputs, rows):
        own = slice(start, start + rows)
        part = weight[own]
        out.fp8_scale[own] = quantize_rows(part).fp8_scale if scale is None else scale[own]
        codes = _round(part[:, order].t().contiguous(), out.fp8_scale[own].view(-1), sorted_inputs)
        out.values.view(torch.uint8)[own] = codes.t()[:, back]
    return out


def _round(columns: Tensor, scale: Tensor, inputs: Inputs) -> Tensor:
    """(K, N) weights in the order they are rounded, (N,) scales -> (K, N), the codes of e4m3."""
    if columns.is_cuda:
        from adaptft.kernels.triton_rounding import round_on_gpu

        return round_on_gpu(columns, scale, inputs)
    codes = torch.empty(columns.shape, dtype=torch.uint8)
    left = torch.zeros_like(scale)  # what the errors so far add up to at the mean input
    for k, column in enumerate(columns):
        wanted = column.float() / scale
        near = wanted.to(torch.float8_e4m3fn)
        other = _other_neighbour(wanted, near)
        errors = [value.float() - wanted for value in (near, other)]
        after = [left + inputs.mean[k] * error for error in errors]
        costs = [inputs.variance[k] * error**2 + total**2 for error, total in zip(errors, after, strict=True)]
        farther = (costs[1] < costs[0]) & (near.float().abs() < E4M3_MAX)
        left = torch.where(farther, after[1], after[0])
        codes[k] = torch.where(farther, other.view(torch.uint8), near.view(torch.uint8))
    return codes


def _other_neighbour(wanted: Tensor, near: Tensor) -> Tensor:
    """The number of e4m3 on the other side of ``wanted``: codes count up with the absolute value."""
    code = near.view(torch.uint8).int()
    step = torch.where(wanted.abs() > near.float().abs(), 1, -1)
    size = ((code & ~SIGN) + step).clamp(0, LARGEST_CODE)
    return ((code & SIGN) | size).to(torch.uint8).view(torch.float8_e4m3fn)
