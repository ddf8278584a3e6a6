"""A gated MLP with adapters on all three of its layers, as one opaque operator with its own backward pass.

Keeps the input, gate and up, and the adapters' small ``z``: 2h + 4f bytes a token. The activation and its gradient
come as the next matmul takes them (:mod:`adaptft.kernels.gated`); where that is in FP8, the adapters read the same
quantised values. ``a`` and ``b`` as in :mod:`adaptft.kernels.adapted_linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptft.kernels import frozen_weights
from adaptft.kernels.frozen_weights import Frozen, as_operand
from adaptft.kernels.gated import gated_backward, gated_forward
from adaptft.kernels.quantize import Operand
from adaptft.kernels.thin import across_rows, add_low_rank, columns, down_columns


@torch.library.custom_op("adaptft::adapted_mlp", mutates_args=())
def adapted_mlp(
    x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor],
    storage: str, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(T, h) -> (T, h); and what the backward pass takes: gate and up (T, 2f), z (T, 2R), z of down (T, R)."""
    first, second = _weights(x, b, a_down, b_down, gate_up, down, storage)
    products = frozen_weights.forward(as_operand(x, first), first, x.dtype)
    z = x @ a.to(x.dtype).t()
    for half, half_z, half_b in zip(*_halves(products, z, b.to(x.dtype)), strict=True):
        add_low_rank(half, half_z, half_b)
    hidden = gated_forward(products, activation, fp8=first.is_fp8)
    y = frozen_weights.forward(hidden, second, x.dtype)
    z_down = across_rows(hidden, a_down.to(x.dtype).t())
    y.addmm_(z_down, b_down.to(x.dtype).t())
    return y, products, z, z_down


@adapted_mlp.register_fake
def _(
    x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor],
    storage: str, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    sizes = (b_down.shape[0], b.shape[0], a.shape[0], a_down.shape[0])
    y, products, z, z_down = (x.new_empty(x.shape[0], size) for size in sizes)
    return y, products, z, z_down


@torch.library.custom_op("adaptft::adapted_mlp_backward", mutates_args=())
def adapted_mlp_backward(
    gradient: Tensor, x: Tensor, products: Tensor, z: Tensor, z_down: Tensor, a: Tensor, b: Tensor, a_down: Tensor,
    b_down: Tensor, gate_up: list[Tensor], down: list[Tensor], storage: str, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> gradients of x, a, b, a_down and b_down."""
    first, second = _weights(x, b, a_down, b_down, gate_up, down, storage)
    low = tuple(t.to(x.dtype) for t in (a, b, a_down, b_down))
    of_hidden = frozen_weights.backward(as_operand(gradient, second, second.row_scale), second, x.dtype)
    of_z_down = gradient @ low[3]
    add_low_rank(of_hidden, of_z_down, low[2].t())
    both, hidden = gated_backward(of_hidden, products, activation, first.row_scale)
    del of_hidden
    of_x = frozen_weights.backward(both, first, x.dtype)
    of_a_down, of_b_down = down_columns(hidden, of_z_down).t(), gradient.t() @ z_down
    of_z, of_b = _through_b(both, z, low[1], first.row_scale)
    of_x.addmm_(of_z, low[0])
    return of_x, (of_z.t() @ x).to(a.dtype), of_b, of_a_down.to(a_down.dtype).contiguous(), of_b_down.to(b_down.dtype)


def _through_b(both: Operand, z: Tensor, b: Tensor, row_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of z (T, 2R) and b (2F, R); in FP8, ``both`` comes times ``row_scale``, which is divided out again."""
    width, inverse = b.shape[0] // 2, None if row_scale is None else 1 / row_scale.t()
    small = b if inverse is None else (b * inverse).to(b.dtype)
    parts = (columns(both, 0, width), columns(both, width, 2 * width))
    of_z = [across_rows(part, half) for part, half in zip(parts, small.chunk(2), strict=True)]
    of_b = torch.cat([down_columns(part, half) for part, half in zip(parts, z.chunk(2, dim=1), strict=True)])
    return torch.cat(of_z, dim=1), of_b if inverse is None else of_b * inverse


@adapted_mlp_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, products: Tensor, z: Tensor, z_down: Tensor, a: Tensor, b: Tensor, a_down: Tensor,
    b_down: Tensor, gate_up: list[Tensor], down: list[Tensor], storage: str, activation: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (*(torch.empty_like(t) for t in (x, a, b, a_down, b_down)),)  # type: ignore[return-value]


def _halves(products: Tensor, z: Tensor, b: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Gate's and up's part of each, as views."""
    return products.chunk(2, dim=1), z.chunk(2, dim=1), b.chunk(2)


def _weights(
    x: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor], storage: str
) -> tuple[Frozen, Frozen]:
    width = a_down.shape[1]
    return Frozen(gate_up, storage, [width, width], x.shape[1]), Frozen(down, storage, [b_down.shape[0]], width)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, a, b, a_down, b_down, gate_up, down, storage, activation = inputs
    _, products, z, z_down = output
    ctx.save_for_backward(x, products, z, z_down, a, b, a_down, b_down, *gate_up, *down)
    ctx.num_gate_up, ctx.storage, ctx.activation = len(gate_up), storage, activation


def _backward(ctx: Any, of_y: Tensor, *_: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors  # once: a checkpointed layer lets nobody unpack them again
    saved, weights = tensors[:8], tensors[8:]
    gate_up, down = list(weights[: ctx.num_gate_up]), list(weights[ctx.num_gate_up :])
    gradients = adapted_mlp_backward(of_y.contiguous(), *saved, gate_up, down, ctx.storage, ctx.activation)
    return *gradients, [None] * len(gate_up), [None] * len(down), None, None


adapted_mlp.register_autograd(_backward, setup_context=_keep)
