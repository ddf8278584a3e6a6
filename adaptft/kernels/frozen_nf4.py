"""A frozen linear layer stored in NF4 (bitsandbytes' format), as two opaque operators.

Each operator dequantises the weight, multiplies, and lets the 16-bit copy go. They are opaque on purpose:
written out in the open, torch.compile would notice that forward and backward dequantise the same weight and
keep the 16-bit copy of every layer in between, which is the memory that NF4 is there to save.
They also spare the compiler bitsandbytes' own module, which breaks the graph at every layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _dequantize(weight: Tensor, scales: list[Tensor], shape: list[int], dtype: torch.dtype) -> Tensor:
    """NF4 -> (out, in) in ``dtype``. ``scales``: [absmax], or with double quantisation [absmax, code, absmax2, offset].

    Block sizes are bitsandbytes' defaults, 64 weights and 256 scales, checked at construction.
    """
    absmax = scales[0]
    if len(scales) > 1:
        _, code, outer, offset = scales
        absmax = torch.ops.bitsandbytes.dequantize_blockwise(absmax, outer, code, 256, torch.float32) + offset
    out: Tensor = torch.ops.bitsandbytes.dequantize_4bit(weight, absmax, 64, "nf4", shape, dtype)
    return out


@torch.library.custom_op("adaptft::nf4_linear", mutates_args=())
def nf4_linear(x: Tensor, weight: Tensor, scales: list[Tensor], shape: list[int]) -> Tensor:
    """(tokens, in) -> (tokens, out)."""
    return x @ _dequantize(weight, scales, shape, x.dtype).t()


@nf4_linear.register_fake
def _(x: Tensor, weight: Tensor, scales: list[Tensor], shape: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], shape[0])


@torch.library.custom_op("adaptft::nf4_linear_backward", mutates_args=())
def nf4_linear_backward(gradient: Tensor, weight: Tensor, scales: list[Tensor], shape: list[int]) -> Tensor:
    """(tokens, out) -> (tokens, in): the gradient of the input; the weight is frozen."""
    return gradient @ _dequantize(weight, scales, shape, gradient.dtype)


@nf4_linear_backward.register_fake
def _(gradient: Tensor, weight: Tensor, scales: list[Tensor], shape: list[int]) -> Tensor:
    return gradient.new_empty(gradient.shape[0], shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, weight, scales, shape = inputs
    ctx.save_for_backward(weight, *scales)
    ctx.shape = shape


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    weight, *scales = ctx.saved_tensors
    return nf4_linear_backward(gradient.contiguous(), weight, scales, ctx.shape), None, [None] * len(scales), None


nf4_linear.register_autograd(_backward, setup_context=_keep)


class FrozenNf4Linear(nn.Module):
    """``x @ W.T + bias`` with bitsandbytes' packed NF4 weight, which is shared with the layer it replaces."""

    bias: Tensor | None

    def __init__(self, linear: Any) -> None:
        super().__init__()
        state = linear.weight.quant_state
        if state.quant_type != "nf4" or state.blocksize != 64 or (state.nested and state.state2.blocksize != 256):
            raise NotImplementedError(f"NF4 with other block sizes than bitsandbytes' defaults: {state.blocksize}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.shape = list(state.shape)
        scales = (
            [state.absmax, state.state2.code, state.state2.absmax, state.offset] if state.nested else [state.absmax]
        )
        for number, scale in enumerate(scales):
            self.register_buffer(f"scale_{number}", scale, persistent=False)
        self.num_scales = len(scales)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), in the type of ``x``."""
        scales = [getattr(self, f"scale_{number}") for number in range(self.num_scales)]
        out: Tensor = nf4_linear(x.reshape(-1, self.in_features), self.weight.data, scales, self.shape)
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.view(*x.shape[:-1], self.out_features)


def convert_nf4_linears(model: nn.Module) -> int:
    """Replace every ``bitsandbytes.nn.Linear4bit`` (adapted or not) in place, sharing its storage; -> how many."""
    from bitsandbytes.nn import Linear4bit

    names = [name for name, module in model.named_modules() if isinstance(module, Linear4bit)]
    for name in names:
        model.set_submodule(name, FrozenNf4Linear(model.get_submodule(name)))
    return len(names)
