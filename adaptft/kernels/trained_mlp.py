"""A gated MLP whose three weights are trained, in FP8, as one opaque operator with its own backward pass.

Keeps the input in one byte a value, and gate and up: the activation is made again, in FP8, in the backward pass
(:mod:`adaptft.kernels.gated`), whose gradient comes quantised as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptft.kernels import fp8_matmul
from adaptft.kernels.gated import Ranges, gated_backward, gated_forward
from adaptft.kernels.quantize import Operand, quantize_rows


@torch.library.custom_op("adaptft::trained_mlp", mutates_args=())
def trained_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(T, h) -> (T, h); and what the backward pass takes: x quantised, gate and up (T, 2f), the two ranges (T, 1)."""
    quantized = quantize_rows(x, whole_powers=True)
    products = fp8_matmul.forward(quantized, fp8_matmul.quantize_weights((gate, up)), x.dtype)
    hidden, steepest = gated_forward(products, activation, fp8=True, whole_powers=True)
    y = fp8_matmul.forward(hidden, fp8_matmul.quantize_weights((down,)), x.dtype)
    return y, quantized.values, quantized.fp8_scale, products, hidden.fp8_scale, steepest


@trained_mlp.register_fake
def _(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    scale, hidden_scale, steepest = (x.new_empty(x.shape[0], 1, dtype=torch.float32) for _ in range(3))
    values, products = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[0], 2 * len(gate))
    return x.new_empty(x.shape[0], len(down)), values, scale, products, hidden_scale, steepest


@torch.library.custom_op("adaptft::trained_mlp_backward", mutates_args=())
def trained_mlp_backward(
    gradient: Tensor, values: Tensor, scale: Tensor, products: Tensor, hidden_scale: Tensor, steepest: Tensor,
    gate: Tensor, up: Tensor, down: Tensor, activation: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """-> gradients of x, of gate and up one under the other (2f, h), and of down."""
    second = fp8_matmul.quantize_weights((down,))
    quantized = fp8_matmul.quantize_gradient(gradient, second)
    of_hidden = fp8_matmul.input_gradient(quantized, second, gradient.dtype)
    largest = torch.linalg.vector_norm(of_hidden, torch.inf, dim=1, keepdim=True, dtype=torch.float32)
    first = fp8_matmul.quantize_weights((gate, up))
    ranges = Ranges(first.fp8_scale.t().contiguous(), largest, steepest, hidden_scale)
    both, hidden = gated_backward(of_hidden, products, activation, ranges, whole_powers=True)
    del of_hidden
    of_down = fp8_matmul.weight_gradient(quantized, hidden, second.fp8_scale, gradient.dtype)
    of_x = fp8_matmul.input_gradient(both, first, gradient.dtype)
    of_first = fp8_matmul.weight_gradient(both, Operand(values, scale), first.fp8_scale, gradient.dtype)
    return of_x, of_first.to(gate.dtype), of_down.to(down.dtype)


@trained_mlp_backward.register_fake
def _(
    gradient: Tensor, values: Tensor, scale: Tensor, products: Tensor, hidden_scale: Tensor, steepest: Tensor,
    gate: Tensor, up: Tensor, down: Tensor, activation: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return (
        torch.empty_like(values, dtype=gradient.dtype), gate.new_empty(2 * len(gate), gate.shape[1]),
        torch.empty_like(down),
    )  # fmt: skip


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, *weights, ctx.activation = inputs
    ctx.save_for_backward(*output[1:], *weights)


def _backward(ctx: Any, of_y: Tensor, *_: Tensor) -> tuple[Any, ...]:
    of_x, of_first, of_down = trained_mlp_backward(of_y.contiguous(), *ctx.saved_tensors, ctx.activation)
    of_gate, of_up = of_first.chunk(2)
    return of_x, of_gate, of_up, of_down, None


trained_mlp.register_autograd(_backward, setup_context=_keep)
