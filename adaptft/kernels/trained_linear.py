"""Trained linear layers that share an input, in FP8, as one opaque operator with its own backward pass.

Keeps the input in one byte a value. Weights come as they are stored, and each gets its own gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptft.kernels import fp8_matmul
from adaptft.kernels.quantize import Operand, quantize_rows


@torch.library.custom_op("adaptft::trained_linear", mutates_args=())
def trained_linear(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(T, K) -> y (T, N), the outputs of all layers side by side, in the type of ``x``; and x quantised."""
    quantized = quantize_rows(x, whole_powers=True)
    y = fp8_matmul.forward(quantized, fp8_matmul.quantize_weights(weights), x.dtype)
    return y, quantized.values, quantized.fp8_scale


@trained_linear.register_fake
def _(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    y = x.new_empty(x.shape[0], sum(len(weight) for weight in weights))
    return y, torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[0], 1, dtype=torch.float32)


@torch.library.custom_op("adaptft::trained_linear_backward", mutates_args=())
def trained_linear_backward(
    gradient: Tensor, values: Tensor, scale: Tensor, weights: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """-> gradients of x (T, K) and of all weights, one under the other (N, K)."""
    x, weight = Operand(values, scale), fp8_matmul.quantize_weights(weights)
    quantized = fp8_matmul.quantize_gradient(gradient, weight)
    of_x = fp8_matmul.input_gradient(quantized, weight, gradient.dtype)
    of_weights = fp8_matmul.weight_gradient(quantized, x, weight.fp8_scale, gradient.dtype)
    return of_x, of_weights.to(weights[0].dtype)


@trained_linear_backward.register_fake
def _(gradient: Tensor, values: Tensor, scale: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    rows = sum(len(weight) for weight in weights)
    return torch.empty_like(values, dtype=gradient.dtype), weights[0].new_empty(rows, values.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[1])


def _backward(ctx: Any, of_y: Tensor, *_: Tensor) -> tuple[Any, ...]:
    values, scale, *weights = ctx.saved_tensors
    of_x, of_weights = trained_linear_backward(of_y.contiguous(), values, scale, weights)
    return of_x, list(torch.split(of_weights, [len(weight) for weight in weights]))


trained_linear.register_autograd(_backward, setup_context=_keep)
