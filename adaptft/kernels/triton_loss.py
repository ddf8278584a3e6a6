"""Triton kernel of :mod:`adaptft.kernels.linear_cross_entropy`: a program owns a row of logits. GPU only.

Two passes, no more: the first sums up the row's log-sum-exp, the second writes the gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

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
    logits, labels, losses, gradient, columns, softcap, ignored, HAS_CAP: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    is_trained = label != ignored
    label = tl.where(is_trained, label, 0)
    most = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = _logits(logits, row * columns + column, inside, softcap, HAS_CAP)
        higher = tl.maximum(most, tl.where(inside, value, LOWEST))
        total = total * tl.exp(most - higher) + tl.where(inside, tl.exp(value - higher), 0.0)
        most = higher
    highest = tl.max(most, 0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp(most - highest), 0))
    of_label = _logits(logits, row * columns + label, True, softcap, HAS_CAP)
    tl.store(losses + row, tl.where(is_trained, log_sum - of_label, 0.0))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = _logits(logits, row * columns + column, inside, softcap, HAS_CAP)
        out = _chained(tl.exp(value - log_sum) - tl.where(column == label, 1.0, 0.0), value, softcap, HAS_CAP)
        out = tl.where(is_trained, out, 0.0)
        tl.store(gradient + row * columns + column, out.to(gradient.dtype.element_ty), mask=inside)


def loss_and_gradient_on_gpu(
    logits: Tensor, labels: Tensor, softcap: float | None, ignored: int
) -> tuple[Tensor, Tensor]:
    """See ``adaptft.kernels.linear_cross_entropy.loss_and_gradient``; ``logits`` contiguous."""
    rows, columns = logits.shape
    losses, gradient = torch.empty(rows, device=logits.device, dtype=torch.float32), torch.empty_like(logits)
    _loss_and_gradient[(rows,)](
        logits, labels, losses, gradient, columns, softcap or 0.0, ignored, softcap is not None, BLOCK, num_warps=8
    )
    return losses.sum(), gradient
