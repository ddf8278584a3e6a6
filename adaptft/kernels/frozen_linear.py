"""Linear layers with a frozen weight in FP8 or NF4, as an opaque operator with its own backward pass.

Opaque on purpose: written out in the open, torch.compile would notice that forward and backward unpack the same
NF4 weight and keep the 16-bit copy of every layer in between, which is the memory that NF4 is there to save. It also
spares the compiler bitsandbytes' own module, which breaks the graph at every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptft.kernels import frozen_weights
from adaptft.kernels.frozen_weights import Frozen, as_operand
from adaptft.kernels.quantize import transpose_fp8
from adaptft.kernels.sharing import joined_bias


@torch.library.custom_op("adaptft::frozen_linear", mutates_args=())
def frozen_linear(x: Tensor, weight: list[Tensor], storage: str, out_features: list[int]) -> Tensor:
    """(T, K) -> (T, N): ``x W^T``, in the type of ``x``."""
    frozen = Frozen(weight, storage, out_features, x.shape[1])
    return frozen_weights.forward(as_operand(x, frozen), frozen, x.dtype)


@frozen_linear.register_fake
def _(x: Tensor, weight: list[Tensor], storage: str, out_features: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], sum(out_features))


@torch.library.custom_op("adaptft::frozen_linear_backward", mutates_args=())
def frozen_linear_backward(
    gradient: Tensor, weight: list[Tensor], storage: str, out_features: list[int], in_features: int
) -> Tensor:
    """(T, N) -> (T, K): the gradient of the input; the weight is frozen."""
    frozen = Frozen(weight, storage, out_features, in_features)
    return frozen_weights.backward(as_operand(gradient, frozen, frozen.row_scale), frozen, gradient.dtype)


@frozen_linear_backward.register_fake
def _(gradient: Tensor, weight: list[Tensor], storage: str, out_features: list[int], in_features: int) -> Tensor:
    return gradient.new_empty(gradient.shape[0], in_features)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, storage, out_features = inputs
    ctx.save_for_backward(*weight)
    ctx.storage, ctx.out_features, ctx.in_features = storage, out_features, x.shape[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    weight = list(ctx.saved_tensors)
    of_x = frozen_linear_backward(gradient.contiguous(), weight, ctx.storage, ctx.out_features, ctx.in_features)
    return of_x, [None] * len(weight), None, None


frozen_linear.register_autograd(_backward, setup_context=_keep)


class FrozenLinear(nn.Module):
    """``x W^T + bias`` with a frozen W, of one layer or of several that share an input."""

    bias: Tensor | None

    def __init__(self, frozen: Frozen, bias: Tensor | None) -> None:
        super().__init__()
        self.storage, self.rows = frozen.storage, frozen.out_features
        self.in_features, self.out_features = frozen.in_features, sum(frozen.out_features)
        self.forms: list[tuple[torch.dtype, torch.Size]] = []
        self.store(frozen.tensors)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def store(self, tensors: list[Tensor]) -> None:
        """Keep these tensors, in the order :mod:`adaptft.kernels.frozen_weights` names, in place of any before."""
        for number in range(getattr(self, "num_tensors", 0)):
            delattr(self, f"tensor_{number}")
        self.num_tensors = len(tensors)
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"tensor_{number}", tensor, persistent=False)

    def make_shardable(self, dtype: torch.dtype) -> None:
        """Keep the weight's bytes as flat frozen parameters of ``dtype``, the type that FSDP2 gathers weights in.

        FSDP2 cuts parameters and no buffers, and casts those of other types. bitsandbytes' ``quant_storage`` is the
        same.
        """
        tensors = self.frozen().tensors
        self.forms = [(tensor.dtype, tensor.shape) for tensor in tensors]
        for number, tensor in enumerate(tensors):
            flat = tensor.contiguous().view(-1).view(torch.uint8).view(dtype)
            _to_parameter(self, f"tensor_{number}", flat)
        if self.bias is not None:
            _to_parameter(self, "bias", self.bias)

    @property
    def is_joined(self) -> bool:
        """True where this stands for several layers, which are there as well."""
        return len(self.rows) > 1

    @property
    def weight(self) -> Tensor:
        """The weight as stored; PEFT asks for its device only."""
        return self.tensor_0  # type: ignore[return-value]

    def frozen(self) -> Frozen:
        """The weight as operators take it."""
        tensors = [getattr(self, f"tensor_{number}") for number in range(self.num_tensors)]
        if self.forms:
            tensors = [flat.view(dtype).view(shape) for flat, (dtype, shape) in zip(tensors, self.forms, strict=True)]
        return Frozen(tensors, self.storage, self.rows, self.in_features)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), in the type of ``x``."""
        frozen = self.frozen()
        flat = x.reshape(-1, self.in_features)
        out: Tensor = frozen_linear(flat, frozen.tensors, frozen.storage, frozen.out_features)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*x.shape[:-1], self.out_features)


def _to_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    delattr(module, name)
    module.register_parameter(name, nn.Parameter(value, requires_grad=False))


def frozen_of(base: Any) -> Frozen:
    """The weight of a frozen layer, plain or converted, as operators take it."""
    if isinstance(base, FrozenLinear):
        return base.frozen()
    return Frozen([base.weight], "dense", [base.out_features], base.in_features)


def joined(bases: Sequence[Any], *, transposed_copy: bool) -> FrozenLinear:
    """One layer for several that share an input; they keep views of what is joined, so nothing is stored twice."""
    weights = [frozen_of(base) for base in bases]
    rows, storage = [base.out_features for base in bases], weights[0].storage
    tensors = _JOINERS[storage](weights)
    for base, part in zip(bases, torch.split(tensors[0], rows) if storage in ("dense", "fp8") else (), strict=False):
        if isinstance(base, FrozenLinear):
            base.store([part, base.frozen().tensors[1]])
        else:
            base.weight.data = part
    if storage == "fp8" and transposed_copy:
        tensors.append(transpose_fp8(tensors[0]))
    return FrozenLinear(Frozen(tensors, storage, rows, bases[0].in_features), joined_bias(bases))


_JOINERS: dict[str, Any] = {
    "dense": lambda weights: [torch.cat([w.tensors[0].detach() for w in weights])],
    "fp8": lambda weights: [torch.cat([w.tensors[0] for w in weights]), torch.cat([w.tensors[1] for w in weights], 1)],
    "nf4": lambda weights: [tensor for w in weights for tensor in w.tensors],
    "nf4_fp8": lambda weights: [
        *(tensor for w in weights for tensor in w.tensors[:-1]),
        torch.cat([w.tensors[-1] for w in weights], 1),
    ],
}
