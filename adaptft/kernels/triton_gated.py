"""Triton kernels of :mod:`adaptft.kernels.gated`. Imported on a GPU only.

A row that is to be quantised must be seen whole before its first value is written. Forward, a program holds it in
registers, in two spans, as the smallest power of two above it would waste up to half of them. Backward there are
three rows, which do not fit: they are quantised by a bound that is known before.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.gated import Ranges
from adaptft.kernels.quantize import Operand, empty_operand
from adaptft.kernels.triton_fp8 import scale_of

FORWARD_VALUES = 1024
"""Of a span, that a warp takes: 16 warps at 18944 columns, which take 0.24 ms on an H200 where 8 or 32 take 0.4."""
BLOCK, BACKWARD_WARPS = 2048, 8


@triton.jit
def _activation(gate, ACTIVATION: tl.constexpr):
    """-> act(gate) and its derivative."""
    if ACTIVATION == "silu":
        sigmoid = 1.0 / (1.0 + tl.exp(-gate))
        return gate * sigmoid, sigmoid * (1.0 + gate * (1.0 - sigmoid))
    # gelu by tanh, with tanh(y) = 2 / (1 + exp(-2y)) - 1
    inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
    tanh = 2.0 / (1.0 + tl.exp(-2.0 * inner)) - 1.0
    slope = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * gate * gate)
    return 0.5 * gate * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * gate * (1.0 - tanh * tanh) * slope


@triton.jit
def _gate_and_up(gate_up, row, column, width):
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    return gate, tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _hidden(gate_up, row, column, width, ACTIVATION: tl.constexpr):
    """-> h, and the steepest slope."""
    gate, up = _gate_and_up(gate_up, row, column, width)
    act, slope = _activation(gate, ACTIVATION)
    return act * up, tl.max(tl.maximum(tl.abs(up * slope), tl.abs(act)), 0)


@triton.jit
def _forward(
    gate_up, hidden, scale, steepest, width,
    FP8: tl.constexpr, WHOLE_POWERS: tl.constexpr, ACTIVATION: tl.constexpr, SPAN: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column, further = tl.arange(0, SPAN), SPAN + tl.arange(0, REST)
    first, first_steepest = _hidden(gate_up, row, column, width, ACTIVATION)
    second, second_steepest = _hidden(gate_up, row, further, width, ACTIVATION)
    if FP8:
        most = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        own = scale_of(most, WHOLE_POWERS)
        tl.store(scale + row, own)
        tl.store(steepest + row, tl.maximum(first_steepest, second_steepest))
        first, second = first * (1.0 / own), second * (1.0 / own)
    tl.store(hidden + row * width + column, first.to(hidden.dtype.element_ty), mask=column < width)
    tl.store(hidden + row * width + further, second.to(hidden.dtype.element_ty), mask=further < width)


@triton.jit
def _backward(
    gradient, gate_up, factor, bound, hidden_scale, both, scale, hidden, width,
    FP8: tl.constexpr, WHOLE_POWERS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    of_hidden = tl.load(gradient + row * width + column, mask=inside, other=0.0).to(tl.float32)
    gate, up = _gate_and_up(gate_up, row, column, width)
    act, slope = _activation(gate, ACTIVATION)
    of_gate, of_up, value = of_hidden * up * slope, of_hidden * act, act * up
    if FP8:
        own = scale_of(tl.load(bound + row), WHOLE_POWERS)
        if tl.program_id(1) == 0:
            tl.store(scale + row, own)
        gate_factor = tl.load(factor + column, mask=inside, other=0.0)
        up_factor = tl.load(factor + width + column, mask=inside, other=0.0)
        inverse = 1.0 / own  # dividing each value takes several instructions
        of_gate, of_up = of_gate * gate_factor * inverse, of_up * up_factor * inverse
        value *= 1.0 / tl.load(hidden_scale + row)
    tl.store(both + row * 2 * width + column, of_gate.to(both.dtype.element_ty), mask=inside)
    tl.store(both + row * 2 * width + width + column, of_up.to(both.dtype.element_ty), mask=inside)
    tl.store(hidden + row * width + column, value.to(hidden.dtype.element_ty), mask=inside)


def _operand(rows: int, columns: int, like: Tensor, fp8: bool) -> Operand:
    if not fp8:
        return Operand(like.new_empty(rows, columns), None)
    return empty_operand(rows, columns, like.device)


def gated_forward_on_gpu(gate_up: Tensor, activation: str, *, fp8: bool, whole_powers: bool) -> tuple[Operand, Tensor]:
    """See :func:`adaptft.kernels.gated.gated_forward`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    hidden = _operand(rows, width, gate_up, fp8)
    steepest = torch.empty(rows if fp8 else 0, 1, device=gate_up.device, dtype=torch.float32)
    span = triton.next_power_of_2(width) // 2
    rest = triton.next_power_of_2(width - span)
    warps = min(max(span // FORWARD_VALUES, 4), 32)
    _forward[(rows,)](
        gate_up, *hidden, steepest, width, fp8, whole_powers, activation, span, rest, num_warps=warps
    )  # fmt: skip
    return hidden, steepest


def gated_backward_on_gpu(
    gradient: Tensor, gate_up: Tensor, activation: str, ranges: Ranges | None, *, whole_powers: bool
) -> tuple[Operand, Operand]:
    """See :func:`adaptft.kernels.gated.gated_backward`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    fp8 = ranges is not None
    both, hidden = _operand(rows, 2 * width, gate_up, fp8), _operand(rows, width, gate_up, fp8)
    factor = bound = hidden_scale = None
    if ranges:
        factor, hidden_scale = ranges.column_factor, ranges.hidden_scale
        bound = ranges.largest * ranges.steepest * factor.amax()
    _backward[(rows, triton.cdiv(width, BLOCK))](
        gradient, gate_up, factor, bound, hidden_scale, *both, hidden.values, width,
        fp8, whole_powers, activation, BLOCK, num_warps=BACKWARD_WARPS,
    )  # fmt: skip
    return both, Operand(hidden.values, hidden_scale)
