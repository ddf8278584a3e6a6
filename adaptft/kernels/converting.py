"""Frozen linear layers of a model put into the storage that the kernels multiply from: FP8, or bitsandbytes' NF4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from adaptft.kernels import nf4
from adaptft.kernels.frozen_linear import FrozenLinear
from adaptft.kernels.frozen_weights import Frozen
from adaptft.kernels.quantize import quantize_rows, transpose_fp8
from adaptft.kernels.rounding import Inputs, quantize_rows_for
from adaptft.plans import FP8_ALIGNMENT


def fits_fp8(linear: nn.Linear) -> bool:
    """True where both dimensions are multiples of what the FP8 matmul takes."""
    return linear.in_features % FP8_ALIGNMENT == 0 and linear.out_features % FP8_ALIGNMENT == 0


def is_named(name: str, endings: Iterable[str]) -> bool:
    """True where ``name`` is one of ``endings`` or ends with one at a dot: ``mlp.gate``, but not ``gate_proj``."""
    return any(f".{name}".endswith(f".{ending}") for ending in endings)


def convert_to_fp8(
    model: nn.Module,
    skipped: Iterable[str] = (),
    *,
    transposed_copy: bool = True,
    has_weights: bool = True,
    inputs: Mapping[nn.Module, Inputs] | None = None,
) -> int:
    """Replace every frozen ``nn.Linear`` by its FP8 form, in place; -> how many.

    Adapters keep their own linears, since those are trained. ``skipped`` are names that stay in 16 bit
    (the head, routers); PEFT keeps the original of an adapted layer as ``NAME.base_layer``. Without ``has_weights``
    only memory is reserved, for what another rank sends. ``inputs`` are what layers get; the weights of others are
    rounded to the nearest.
    """
    skipped, inputs = tuple(skipped), inputs or {}
    names = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and not module.weight.requires_grad
        and fits_fp8(module)
        and not is_named(name.removesuffix(".base_layer"), skipped)
    ]
    for name in names:
        linear = model.get_submodule(name)
        model.set_submodule(name, _to_fp8(linear, transposed_copy, has_weights, inputs.get(linear)))
    return len(names)


def _to_fp8(linear: Any, transposed_copy: bool, has_weights: bool, inputs: Inputs | None) -> FrozenLinear:
    """The FP8 form of a linear layer, rounded for its ``inputs``; without ``has_weights`` only the memory for it."""
    if has_weights:
        weight = linear.weight.detach()
        rounded = quantize_rows(weight) if inputs is None else quantize_rows_for(weight, inputs)
        tensors = [rounded.values, rounded.fp8_scale.t().contiguous()]
        tensors += [transpose_fp8(rounded.values)] if transposed_copy else []
    else:
        weight = torch.empty_like(linear.weight, dtype=torch.float8_e4m3fn, requires_grad=False)
        tensors = [weight, weight.new_empty(1, len(weight), dtype=torch.float32)]
        tensors += [torch.empty_like(weight.t(), memory_format=torch.contiguous_format)] if transposed_copy else []
    return FrozenLinear(Frozen(tensors, "fp8", [linear.out_features], linear.in_features), linear.bias)


def convert_nf4(model: nn.Module, *, fp8: bool = False) -> int:
    """Replace every ``bitsandbytes.nn.Linear4bit`` (adapted or not) in place, sharing its storage; -> how many.

    Args:
        fp8: multiply in FP8, where the layer's shape allows.
    """
    from bitsandbytes.nn import Linear4bit

    names = [name for name, module in model.named_modules() if isinstance(module, Linear4bit)]
    for name in names:
        model.set_submodule(name, _from_nf4(model.get_submodule(name), fp8))
    return len(names)


def _from_nf4(linear: Any, fp8: bool) -> FrozenLinear:
    state = linear.weight.quant_state
    if (
        state.quant_type != "nf4"
        or state.blocksize != nf4.BLOCK
        or (state.nested and state.state2.blocksize != nf4.OUTER_BLOCK)
    ):
        raise NotImplementedError(f"NF4 with other block sizes than bitsandbytes' defaults: {state.blocksize}")
    tensors = [linear.weight.data, state.absmax]
    if state.nested:
        tensors += [state.state2.code, state.state2.absmax, state.offset]
    rows, columns = [linear.out_features], linear.in_features
    if not (fp8 and fits_fp8(linear) and columns % nf4.BLOCK == 0):
        return FrozenLinear(Frozen(tensors, "nf4", rows, columns), linear.bias)
    scale = nf4.fp8_row_scale([tensors], rows, columns)
    return FrozenLinear(Frozen([*tensors, scale], "nf4_fp8", rows, columns), linear.bias)
