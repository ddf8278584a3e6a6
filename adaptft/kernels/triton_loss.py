"""Triton kernel of :mod:`adaptft.kernels.linear_cross_entropy`: a program owns a row of logits. GPU only.

Two passes, no more: what the second one needs of the whole row, its log-sum-exp and, in FP8, the largest value of its
gradient, is summed up in the first. Largest, since each value but the label's is a softmax times its factor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.quantize import Operand
from adaptft.kernels.triton_fp8 import E4M3_LARGEST, LEAST_SCALE

BLOCK = 4096
LOWEST = tl.constexpr(-1e30)
"""Stands for minus infinity, of which differences are no number."""


@triton.jit
def _logits(logits, at, inside, softcap, HAS_CAP: tl.constexpr):
    value = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32)
    if HAS_CAP:  # softcap tanh(value / softcap)
        value = softcap * (1.0 - 2.0 / (tl.exp(2.0 * value / softcap) + 1.0))
    return value


@triton.jit
def _chained(gradient, value, softcap, HAS_CAP: tl.constexpr):
    """The gradient of what came out of the matmul."""
    if HAS_CAP:
        gradient *= 1.0 - (value / softcap) * (value / softcap)
    return gradient


@triton.jit
def _loss_and_gradient(
    logits, labels, factor, losses, gradient, scale, columns, softcap, ignored,
    FP8: tl.constexpr, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    is_trained = label != ignored
    label = tl.where(is_trained, label, 0)
    most = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    largest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = _logits(logits, row * columns + column, inside, softcap, HAS_CAP)
        higher = tl.maximum(most, tl.where(inside, value, LOWEST))
        shrink, own = tl.exp(most - higher), tl.where(inside, tl.exp(value - higher), 0.0)
        total = total * shrink + own
        if FP8:
            own = _chained(own, value, softcap, HAS_CAP) * tl.load(factor + column, mask=inside, other=0.0)
            largest = tl.maximum(largest * shrink, tl.where(column == label, 0.0, own))
        most = higher
    highest = tl.max(most, 0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp(most - highest), 0))
    of_label = _logits(logits, row * columns + label, True, softcap, HAS_CAP)
    tl.store(losses + row, tl.where(is_trained, log_sum - of_label, 0.0))
    inverse = 1.0
    if FP8:
        of_others = tl.max(largest * tl.exp(most - log_sum), 0)
        of_own = _chained(1.0 - tl.exp(of_label - log_sum), of_label, softcap, HAS_CAP) * tl.load(factor + label)
        own_scale = tl.maximum(tl.maximum(of_others, of_own) / E4M3_LARGEST, LEAST_SCALE)
        own_scale = tl.where(is_trained, own_scale, LEAST_SCALE)
        tl.store(scale + row, own_scale)
        inverse = 1.0 / own_scale
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = _logits(logits, row * columns + column, inside, softcap, HAS_CAP)
        out = _chained(tl.exp(value - log_sum) - tl.where(column == label, 1.0, 0.0), value, softcap, HAS_CAP)
        if FP8:
            out *= tl.load(factor + column, mask=inside, other=0.0) * inverse
        out = tl.where(is_trained, out, 0.0)
        tl.store(gradient + row * columns + column, out.to(gradient.dtype.element_ty), mask=inside)


def loss_and_gradient_on_gpu(
    logits: Tensor, labels: Tensor, softcap: float | None, column_factor: Tensor | None, ignored: int
) -> tuple[Tensor, Operand]:
    """See ``adaptft.kernels.linear_cross_entropy.loss_and_gradient``; ``logits`` contiguous."""
    rows, columns = logits.shape
    fp8 = column_factor is not None
    losses = torch.empty(rows, device=logits.device, dtype=torch.float32)
    gradient = torch.empty_like(logits, dtype=torch.float8_e4m3fn if fp8 else logits.dtype)
    scale = torch.empty(rows, 1, device=logits.device, dtype=torch.float32) if fp8 else None
    _loss_and_gradient[(rows,)](
        logits, labels, column_factor, losses, gradient, scale, columns, softcap or 0.0, ignored,
        fp8, softcap is not None, BLOCK, num_warps=8,
    )  # fmt: skip
    return losses.sum(), Operand(gradient, scale)
