"""A gated MLP with adapters on all three of its layers, as one opaque operator with its own backward pass.

Keeps the input, gate and up, and the adapters' small ``z``: 2h + 4f bytes a token. The activation and its gradient
come as the next matmul takes them (:mod:`adaptft.kernels.gated`); where that is in FP8, the adapters read the same
quantised values. ``a`` (2 R, h) and ``b`` (2 f, R) are those of gate and up, scaled: each row of ``b`` meets its own
layer's half of ``z``. All come in the type of the activations.

Where memory is shortest, ``tile_tokens`` has it go through the tokens in tiles, forward and backward, and keep
nothing but the input: gate and up are made again, and exist for one tile at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaptft.kernels import frozen_weights
from adaptft.kernels.frozen_weights import Frozen, as_operand, is_fp8
from adaptft.kernels.gated import Ranges, gated_backward, gated_forward
from adaptft.kernels.quantize import Operand
from adaptft.kernels.thin import across_rows, add_low_rank, add_low_rank_and_range, down_columns


class _Weights(NamedTuple):
    """Both frozen weights, and the adapters."""

    gate_up: Frozen
    down: Frozen
    a: Tensor
    b: Tensor
    a_down: Tensor
    b_down: Tensor


class _Kept(NamedTuple):
    """What the backward pass takes: gate and up (T, 2f), z (T, 2R), z of down (T, R); in FP8 the two ranges (T, 1)."""

    products: Tensor
    z: Tensor
    z_down: Tensor
    hidden_scale: Tensor
    steepest: Tensor


@torch.library.custom_op("adaptft::adapted_mlp", mutates_args=())
def adapted_mlp(
    x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor],
    storage: str, activation: str, tile_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(T, h) -> (T, h); and what the backward pass takes, empty where tokens go in tiles."""
    weights = _weights(x, a, b, a_down, b_down, gate_up, down, storage)
    if not tile_tokens:
        y, kept = _forward(x, weights, activation)
        return y, *kept
    y = torch.empty_like(x)
    for own in _tiles(x, tile_tokens):
        y[own] = _forward(x[own], weights, activation)[0]
    return y, *_empty_kept(x, a, b, a_down, storage, 0)


@adapted_mlp.register_fake
def _(
    x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor],
    storage: str, activation: str, tile_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    kept = _empty_kept(x, a, b, a_down, storage, 0 if tile_tokens else x.shape[0])
    return x.new_empty(x.shape[0], b_down.shape[0]), *kept


def _empty_kept(x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, storage: str, tokens: int) -> _Kept:
    products, z, z_down = (x.new_empty(tokens, tensor.shape[0]) for tensor in (b, a, a_down))
    scale, steepest = (x.new_empty(tokens if is_fp8(storage) else 0, 1, dtype=torch.float32) for _ in range(2))
    return _Kept(products, z, z_down, scale, steepest)


@torch.library.custom_op("adaptft::adapted_mlp_backward", mutates_args=())
def adapted_mlp_backward(
    gradient: Tensor, x: Tensor, products: Tensor, z: Tensor, z_down: Tensor, hidden_scale: Tensor, steepest: Tensor,
    a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor], storage: str,
    activation: str, tile_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """-> gradients of x, a, b, a_down and b_down."""
    weights = _weights(x, a, b, a_down, b_down, gate_up, down, storage)
    if not tile_tokens:
        of_x, *small = _backward_of(
            gradient, x, _Kept(products, z, z_down, hidden_scale, steepest), weights, activation
        )
    else:
        of_x, small = torch.empty_like(x), [torch.zeros_like(t, dtype=torch.float32) for t in (a, b, a_down, b_down)]
        for own in _tiles(x, tile_tokens):
            kept = _up_to_down(x[own], weights, activation)[0]
            of_x[own], *parts = _backward_of(gradient[own], x[own], kept, weights, activation)
            for total, part in zip(small, parts, strict=True):
                total += part
            del kept, parts  # before the next tile's are made
    of_a, of_b, of_a_down, of_b_down = (of.to(t.dtype) for of, t in zip(small, (a, b, a_down, b_down), strict=True))
    return of_x, of_a, of_b.contiguous(), of_a_down.contiguous(), of_b_down


@adapted_mlp_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, products: Tensor, z: Tensor, z_down: Tensor, hidden_scale: Tensor, steepest: Tensor,
    a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor], storage: str,
    activation: str, tile_tokens: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return (*(torch.empty_like(t) for t in (x, a, b, a_down, b_down)),)  # type: ignore[return-value]


def _tiles(x: Tensor, tokens: int) -> list[slice]:
    return [slice(start, start + tokens) for start in range(0, x.shape[0], tokens)]


def _up_to_down(x: Tensor, weights: _Weights, activation: str) -> tuple[_Kept, Operand]:
    """What the backward pass takes, and h as the last matmul takes it."""
    first = weights.gate_up
    products = frozen_weights.forward(as_operand(x, first), first, x.dtype)
    z = x @ weights.a.t()
    add_low_rank(products, z, weights.b, groups=2)
    hidden, steepest = gated_forward(products, activation, fp8=first.is_fp8)
    scale = torch.empty_like(steepest) if hidden.scale is None else hidden.scale
    return _Kept(products, z, across_rows(hidden, weights.a_down.t()), scale, steepest), hidden


def _forward(x: Tensor, weights: _Weights, activation: str) -> tuple[Tensor, _Kept]:
    kept, hidden = _up_to_down(x, weights, activation)
    y = frozen_weights.forward(hidden, weights.down, x.dtype)
    y.addmm_(kept.z_down, weights.b_down.t())
    return y, kept


def _backward_of(
    gradient: Tensor, x: Tensor, kept: _Kept, weights: _Weights, activation: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> gradients of x, a, b, a_down and b_down, the last four in any type."""
    first, second = weights.gate_up, weights.down
    of_hidden = frozen_weights.backward(as_operand(gradient, second, second.row_scale), second, x.dtype)
    of_z_down = gradient @ weights.b_down
    largest = add_low_rank_and_range(of_hidden, of_z_down, weights.a_down.t())
    factor = first.row_scale
    ranges = None if factor is None else Ranges(factor, largest, kept.steepest, kept.hidden_scale)
    both, hidden = gated_backward(of_hidden, kept.products, activation, ranges)
    del of_hidden
    of_x = frozen_weights.backward(both, first, x.dtype)
    of_a_down, of_b_down = down_columns(hidden, of_z_down).t(), gradient.t() @ kept.z_down
    of_z, of_b = _through_b(both, kept.z, weights.b, first.row_scale)
    of_x.addmm_(of_z, weights.a)
    return of_x, of_z.t() @ x, of_b, of_a_down, of_b_down


def _through_b(both: Operand, z: Tensor, b: Tensor, row_scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of z (T, 2R) and b (2F, R); in FP8, ``both`` comes times ``row_scale``, which is divided out again."""
    inverse = None if row_scale is None else 1 / row_scale.t()
    small = b if inverse is None else (b * inverse).to(b.dtype)
    of_b = down_columns(both, z, groups=2)
    return across_rows(both, small, groups=2), of_b if inverse is None else of_b * inverse


def _weights(
    x: Tensor, a: Tensor, b: Tensor, a_down: Tensor, b_down: Tensor, gate_up: list[Tensor], down: list[Tensor],
    storage: str,
) -> _Weights:  # fmt: skip
    width = a_down.shape[1]
    first, second = Frozen(gate_up, storage, [width, width], x.shape[1]), Frozen(down, storage, [len(b_down)], width)
    return _Weights(first, second, a, b, a_down, b_down)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, a, b, a_down, b_down, gate_up, down, *ctx.how = inputs
    ctx.save_for_backward(x, *output[1:], a, b, a_down, b_down, *gate_up, *down)
    ctx.num_gate_up = len(gate_up)


def _backward(ctx: Any, of_y: Tensor, *_: Tensor) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors  # once: a checkpointed layer lets nobody unpack them again
    saved, weights = tensors[:10], tensors[10:]
    gate_up, down = list(weights[: ctx.num_gate_up]), list(weights[ctx.num_gate_up :])
    gradients = adapted_mlp_backward(of_y.contiguous(), *saved, gate_up, down, *ctx.how)
    return *gradients, [None] * len(gate_up), [None] * len(down), None, None, None


adapted_mlp.register_autograd(_backward, setup_context=_keep)
