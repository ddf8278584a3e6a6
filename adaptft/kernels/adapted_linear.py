"""Linear layers with adapters that share an input, as one opaque operator with its own backward pass.

``y = x W^T + z B^T`` with ``z = x A^T``, for a frozen W in any storage. Several layers (queries, keys and
values) are one: their weights one under the other, one quantised input, one matmul each way. ``a`` is (R, K), the
first adapter weights one under the other; ``b`` is (N, R), the second ones, scaled, each layer's rows in its own
columns and zeros elsewhere. Both come in the type of the activations.

Opaque, since the compiler would break the careful order of reads up again, and keep what is cheap to make.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptft.kernels import frozen_weights
from adaptft.kernels.frozen_weights import Frozen, as_operand


@torch.library.custom_op("adaptft::adapted_linear", mutates_args=())
def adapted_linear(
    x: Tensor, a: Tensor, b: Tensor, weight: list[Tensor], storage: str, out_features: list[int]
) -> tuple[Tensor, Tensor]:
    """(T, K) -> y (T, N) and z (T, R), in the type of ``x``."""
    frozen = Frozen(weight, storage, out_features, x.shape[1])
    y = frozen_weights.forward(as_operand(x, frozen), frozen, x.dtype)
    z = x @ a.t()
    y.addmm_(z, b.t())
    return y, z


@adapted_linear.register_fake
def _(
    x: Tensor, a: Tensor, b: Tensor, weight: list[Tensor], storage: str, out_features: list[int]
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], b.shape[0]), x.new_empty(x.shape[0], a.shape[0])


@torch.library.custom_op("adaptft::adapted_linear_backward", mutates_args=())
def adapted_linear_backward(
    gradient: Tensor, x: Tensor, z: Tensor, a: Tensor, b: Tensor, weight: list[Tensor], storage: str,
    out_features: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """-> gradients of x (T, K), a (R, K) and b (N, R)."""
    frozen = Frozen(weight, storage, out_features, x.shape[1])
    of_x = frozen_weights.backward(as_operand(gradient, frozen, frozen.row_scale), frozen, x.dtype)
    of_z = gradient @ b
    of_x.addmm_(of_z, a)
    return of_x, of_z.t() @ x, gradient.t() @ z


@adapted_linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, z: Tensor, a: Tensor, b: Tensor, weight: list[Tensor], storage: str,
    out_features: list[int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(x), torch.empty_like(a), torch.empty_like(b)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, a, b, weight, storage, out_features = inputs
    ctx.save_for_backward(x, output[1], a, b, *weight)
    ctx.storage, ctx.out_features = storage, out_features


def _backward(ctx: Any, of_y: Tensor, of_z: Tensor) -> tuple[Any, ...]:
    x, z, a, b, *weight = ctx.saved_tensors
    gradients = adapted_linear_backward(of_y.contiguous(), x, z, a, b, weight, ctx.storage, ctx.out_features)
    return *gradients, [None] * len(weight), None, None


adapted_linear.register_autograd(_backward, setup_context=_keep)
