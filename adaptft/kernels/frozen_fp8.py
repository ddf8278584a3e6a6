"""A frozen linear layer whose two matmuls run in FP8, for adapters trained on top of it.

The weight is stored once as e4m3 with one scale per output row, and once more transposed, since cuBLAS wants
both operands of an FP8 matmul row-major in the reduced dimension: 2 bytes a weight, as bf16.

Forward: each token is quantised with its own scale, then one row-scaled matmul.
Backward: ``dx = dy W``. With ``W = diag(s) Q`` this is ``(dy diag(s)) Q``, so the row scales are folded into
``dy`` before it is quantised token by token. That is exact algebra, and the same FP8 weight serves both ways.
A frozen weight needs no gradient, so both matmuls of the base run at the FP8 rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

E4M3_MAX = 448.0
ALIGNMENT = 16
"""cuBLAS takes FP8 operands whose dimensions are multiples of this."""


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) -> e4m3 of the same shape, and float32 scales (rows, 1) with ``x ~= q * scale``."""
    scale = (x.abs().amax(dim=1, keepdim=True).float() / E4M3_MAX).clamp(min=1e-12)
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


class _FrozenFp8Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, quantized: Tensor, transposed: Tensor, scale: Tensor) -> Tensor:
        tokens, token_scale = quantize_rows(x)
        ctx.save_for_backward(transposed, scale)
        return torch._scaled_mm(
            tokens, quantized.t(), scale_a=token_scale, scale_b=scale, out_dtype=x.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        transposed, scale = ctx.saved_tensors
        tokens, token_scale = quantize_rows(gradient.float() * scale)
        ones = torch.ones(1, transposed.shape[0], device=gradient.device)
        out = torch._scaled_mm(
            tokens, transposed.t(), scale_a=token_scale, scale_b=ones, out_dtype=gradient.dtype, use_fast_accum=True
        )
        return out, None, None, None


class FrozenFp8Linear(nn.Module):
    """``x @ W.T + bias`` with a frozen W in FP8. Buffers: ``quantized``, ``transposed``, ``scale`` (1, out)."""

    quantized: Tensor
    transposed: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        quantized, scale = quantize_rows(linear.weight.detach())
        self.register_buffer("quantized", quantized, persistent=False)
        self.register_buffer("transposed", quantized.t().contiguous(), persistent=False)
        self.register_buffer("scale", scale.t().contiguous(), persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The FP8 weight; PEFT asks for its device and shape only."""
        return self.quantized

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), in the type of ``x``."""
        flat = x.reshape(-1, self.in_features)
        out: Tensor = _FrozenFp8Matmul.apply(flat, self.quantized, self.transposed, self.scale)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features)


def fits_fp8(linear: nn.Linear) -> bool:
    """True where both dimensions are multiples of what the FP8 matmul takes."""
    return linear.in_features % ALIGNMENT == 0 and linear.out_features % ALIGNMENT == 0


def is_named(name: str, endings: Iterable[str]) -> bool:
    """True where ``name`` is one of ``endings`` or ends with one at a dot: ``mlp.gate``, but not ``gate_proj``."""
    return any(f".{name}".endswith(f".{ending}") for ending in endings)


def convert_frozen_linears(model: nn.Module, skipped: Iterable[str] = ()) -> int:
    """Replace every frozen ``nn.Linear`` by its FP8 form, in place; -> how many.

    Adapters keep their own linears, since those are trained. ``skipped`` are names that stay in 16 bit
    (the head, routers); PEFT keeps the original of an adapted layer as ``NAME.base_layer``.
    """
    skipped = tuple(skipped)
    frozen = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and not module.weight.requires_grad
        and fits_fp8(module)
        and not is_named(name.removesuffix(".base_layer"), skipped)
    ]
    for name in frozen:
        model.set_submodule(name, FrozenFp8Linear(model.get_submodule(name)))  # type: ignore[arg-type]
    return len(frozen)
