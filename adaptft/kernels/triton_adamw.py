"""The Triton kernel of :mod:`adaptft.kernels.adamw`. Imported on a GPU only.

One trip through memory: 8 bytes read and 6 written a parameter. The random bits are Philox's, counted by the place of
a value: four words of 32 bits at a time, of which each value takes one, half for the weight and half for the square.
"""

from __future__ import annotations

from math import inf, log2

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.adamw import LOW_BITS, STEP_STRIDE, Guard, Settings

LOW = tl.constexpr(LOW_BITS)
LANES, WARPS = 512, 4


@triton.jit
def _round(values, noise):
    bits = values.to(tl.int32, bitcast=True)
    is_finite = (bits & 0x7F800000) != 0x7F800000
    return tl.where(is_finite, (bits + (noise & LOW)) & ~LOW, bits).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def _update(
    weight, gradient, mean, square, step, grad_scale, found_inf, count,
    rate, beta1, beta2, log2_beta1, log2_beta2, epsilon, kept, seed,
    IS_SCALED: tl.constexpr, IS_GUARDED: tl.constexpr, STRIDE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    if IS_GUARDED:  # noqa: SIM102  (there is no pointer to load from otherwise)
        if tl.load(found_inf) != 0:
            return
    number = tl.load(step)
    by_mean, by_square = rate / (1.0 - tl.exp2(number * log2_beta1)), 1.0 / (1.0 - tl.exp2(number * log2_beta2))
    by = 1.0 / tl.load(grad_scale) if IS_SCALED else 1.0
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    noises = tl.randint4x(seed + STRIDE * number.to(tl.int64), program * LANES + lane)
    for part in tl.static_range(4):
        place = (program * 4 + part) * LANES + lane
        inside = place < count
        wide = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32) * by
        first = tl.load(mean + place, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(square + place, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
        first = beta1 * first + (1.0 - beta1) * wide
        second = beta2 * second + (1.0 - beta2) * wide * wide
        value = value * kept - by_mean * first / (tl.sqrt(second * by_square) + epsilon)
        noise = noises[part].to(tl.int32, bitcast=True)
        tl.store(mean + place, first.to(tl.bfloat16), mask=inside)
        tl.store(weight + place, _round(value, noise), mask=inside)
        tl.store(square + place, _round(second, noise >> 16), mask=inside)


def _log2(beta: float) -> float:
    return log2(beta) if beta else -inf


def update_on_gpu(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor, settings: Settings, guard: Guard
) -> None:
    """See :func:`adaptft.kernels.adamw.update`."""
    if not (weight.is_contiguous() and mean.is_contiguous() and square.is_contiguous()):
        raise ValueError("weights and states have to be contiguous")
    rate, beta1, beta2, epsilon, decay, seed = settings
    with torch.cuda.device(weight.device):
        _update[(triton.cdiv(weight.numel(), 4 * LANES),)](
            weight, gradient.contiguous(), mean, square, step, *guard, weight.numel(),
            rate, beta1, beta2, _log2(beta1), _log2(beta2), epsilon, 1 - rate * decay, seed,
            guard.grad_scale is not None, guard.found_inf is not None, STEP_STRIDE, LANES, num_warps=WARPS,
        )  # fmt: skip
