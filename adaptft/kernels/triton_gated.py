"""Triton kernels of :mod:`adaptft.kernels.gated`: a program owns a row. Imported on a GPU only.

A row that is to be quantised must be seen whole before its first value is written. Forward, a program holds it in
registers, in two spans, as the smallest power of two above it would waste up to half of them. Backward there are
three rows, which do not fit: the program passes over them twice, and few enough programs run at once that the second
pass reads from the cache (8192 x 18944 on an H200: 0.54 ms, by register spills 0.58, at 1.24 GB to move).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from adaptft.kernels.quantize import Operand
from adaptft.kernels.triton_fp8 import E4M3_LARGEST, LEAST_SCALE

BLOCK = 4096
WARPS = 32


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
def _hidden(gate_up, row, column, width, ACTIVATION: tl.constexpr):
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    act, _ = _activation(gate, ACTIVATION)
    return act * up


@triton.jit
def _forward(
    gate_up, hidden, scale, width,
    FP8: tl.constexpr, ACTIVATION: tl.constexpr, SPAN: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column, further = tl.arange(0, SPAN), SPAN + tl.arange(0, REST)
    first = _hidden(gate_up, row, column, width, ACTIVATION)
    second = _hidden(gate_up, row, further, width, ACTIVATION)
    if FP8:
        most = tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0))
        own = tl.maximum(most / E4M3_LARGEST, LEAST_SCALE)
        tl.store(scale + row, own)
        first, second = first * (1.0 / own), second * (1.0 / own)
    tl.store(hidden + row * width + column, first.to(hidden.dtype.element_ty), mask=column < width)
    tl.store(hidden + row * width + further, second.to(hidden.dtype.element_ty), mask=further < width)


@triton.jit
def _gradients(gradient, gate_up, row, column, width, ACTIVATION: tl.constexpr):
    """-> gradients of gate and up, and h."""
    inside = column < width
    of_hidden = tl.load(gradient + row * width + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    act, slope = _activation(gate, ACTIVATION)
    return of_hidden * up * slope, of_hidden * act, act * up


@triton.jit
def _factors(factor, column, width):
    inside = column < width
    return tl.load(factor + column, mask=inside, other=0.0), tl.load(factor + width + column, mask=inside, other=0.0)


@triton.jit
def _backward(
    gradient, gate_up, factor, both, both_scale, hidden, hidden_scale, width,
    FP8: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own, hidden_own = 1.0, 1.0
    if FP8:
        most = tl.zeros((BLOCK,), tl.float32)
        hidden_most = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, width, BLOCK):
            column = start + tl.arange(0, BLOCK)
            of_gate, of_up, value = _gradients(gradient, gate_up, row, column, width, ACTIVATION)
            gate_factor, up_factor = _factors(factor, column, width)
            most = tl.maximum(most, tl.maximum(tl.abs(of_gate * gate_factor), tl.abs(of_up * up_factor)))
            hidden_most = tl.maximum(hidden_most, tl.abs(value))
        own = tl.maximum(tl.max(most, 0) / E4M3_LARGEST, LEAST_SCALE)
        hidden_own = tl.maximum(tl.max(hidden_most, 0) / E4M3_LARGEST, LEAST_SCALE)
        tl.store(both_scale + row, own)
        tl.store(hidden_scale + row, hidden_own)
    inverse, hidden_inverse = 1.0 / own, 1.0 / hidden_own  # dividing each value takes several instructions
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        of_gate, of_up, value = _gradients(gradient, gate_up, row, column, width, ACTIVATION)
        if FP8:
            gate_factor, up_factor = _factors(factor, column, width)
            of_gate, of_up = of_gate * gate_factor * inverse, of_up * up_factor * inverse
            value *= hidden_inverse
        tl.store(both + row * 2 * width + column, of_gate.to(both.dtype.element_ty), mask=inside)
        tl.store(both + row * 2 * width + width + column, of_up.to(both.dtype.element_ty), mask=inside)
        tl.store(hidden + row * width + column, value.to(hidden.dtype.element_ty), mask=inside)


def _operand(rows: int, columns: int, like: Tensor, fp8: bool) -> Operand:
    if not fp8:
        return Operand(like.new_empty(rows, columns), None)
    values = torch.empty(rows, columns, device=like.device, dtype=torch.float8_e4m3fn)
    return Operand(values, torch.empty(rows, 1, device=like.device, dtype=torch.float32))


def gated_forward_on_gpu(gate_up: Tensor, activation: str, *, fp8: bool) -> Operand:
    """See :func:`adaptft.kernels.gated.gated_forward`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    hidden = _operand(rows, width, gate_up, fp8)
    span = triton.next_power_of_2(width) // 2
    rest = triton.next_power_of_2(width - span)
    warps = min(max(span // 512, 4), WARPS)
    _forward[(rows,)](gate_up, *hidden, width, fp8, activation, span, rest, num_warps=warps)
    return hidden


def gated_backward_on_gpu(
    gradient: Tensor, gate_up: Tensor, activation: str, column_factor: Tensor | None
) -> tuple[Operand, Operand]:
    """See :func:`adaptft.kernels.gated.gated_backward`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    fp8 = column_factor is not None
    both, hidden = _operand(rows, 2 * width, gate_up, fp8), _operand(rows, width, gate_up, fp8)
    _backward[(rows,)](gradient, gate_up, column_factor, *both, *hidden, width, fp8, activation, BLOCK, num_warps=WARPS)
    return both, hidden
