"""The gated activation between the two matmuls of an MLP, ``h = act(gate) * up``, forward and backward.

Each is one trip through memory: gate and up are read, and what the next matmul takes is written, quantised row by row
where that matmul is in FP8. The backward pass makes h again rather than keep it.

``gate_up`` (T, 2F) holds gate, then up. Results are :class:`Operand`: 16 bit, or e4m3 with one scale a row.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import torch
from torch import Tensor

from adaptft.kernels.quantize import Operand, quantize_rows


def silu_and_slope(gate: Tensor) -> tuple[Tensor, Tensor]:
    """``g sigmoid(g)`` and its derivative."""
    sigmoid = torch.sigmoid(gate)
    return gate * sigmoid, sigmoid * (1 + gate * (1 - sigmoid))


def gelu_tanh_and_slope(gate: Tensor) -> tuple[Tensor, Tensor]:
    """GELU in its tanh form (Hendrycks and Gimpel 2016) and its derivative."""
    tanh = torch.tanh(sqrt(2 / pi) * (gate + 0.044715 * gate**3))
    inner_slope = sqrt(2 / pi) * (1 + 3 * 0.044715 * gate**2)
    return 0.5 * gate * (1 + tanh), 0.5 * (1 + tanh) + 0.5 * gate * (1 - tanh**2) * inner_slope


ACTIVATIONS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "silu": silu_and_slope,
    "gelu_tanh": gelu_tanh_and_slope,
}


def gated_forward(gate_up: Tensor, activation: str, *, fp8: bool) -> Operand:
    """-> h (T, F)."""
    if gate_up.is_cuda:
        from adaptft.kernels.triton_gated import gated_forward_on_gpu

        return gated_forward_on_gpu(gate_up, activation, fp8=fp8)
    gate, up = gate_up.chunk(2, dim=1)
    hidden = ACTIVATIONS[activation](gate)[0] * up
    return quantize_rows(hidden) if fp8 else Operand(hidden, None)


def gated_backward(
    gradient: Tensor, gate_up: Tensor, activation: str, column_factor: Tensor | None
) -> tuple[Operand, Operand]:
    """-> the gradient of ``gate_up`` (T, 2F), and h (T, F) once more.

    Args:
        gradient: (T, F), of h.
        column_factor: (1, 2F) float32 where the matmuls are in FP8: the scales of the rows of the weight that the
            gradient meets next, multiplied in before it is quantised.
    """
    if gate_up.is_cuda:
        from adaptft.kernels.triton_gated import gated_backward_on_gpu

        return gated_backward_on_gpu(gradient, gate_up, activation, column_factor)
    gate, up = gate_up.chunk(2, dim=1)
    act, slope = ACTIVATIONS[activation](gate)
    both = torch.cat((gradient * up * slope, gradient * act), dim=1).to(gate_up.dtype)
    if column_factor is None:
        return Operand(both, None), Operand(act * up, None)
    return quantize_rows(both, column_factor), quantize_rows(act * up)
