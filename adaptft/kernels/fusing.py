"""Put the fused operators into a PEFT model: PEFT keeps the modules and the adapters, only ``forward`` is another.

Found by structure, not by architecture: a block with ``gate_proj``, ``up_proj``, ``down_proj`` and a known activation
becomes one :func:`adapted_mlp`; ``q_proj``, ``k_proj``, ``v_proj`` of one block become one :func:`adapted_linear`;
any other adapted layer becomes one for itself. So adapters save, load and merge as PEFT's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from adaptft.kernels.adapted_linear import adapted_linear
from adaptft.kernels.adapted_mlp import adapted_mlp
from adaptft.kernels.frozen_linear import FrozenLinear, frozen_of, joined
from adaptft.kernels.frozen_weights import Frozen
from adaptft.kernels.sharing import flat, share_input
from adaptft.plans import FUSED_MLP_LAYERS, fused_rank

SHARED_INPUT = ("q_proj", "k_proj", "v_proj")
ACTIVATION_NAMES = {"SiLU": "silu", "SiLUActivation": "silu", "GELUTanh": "gelu_tanh"}
"""Classes that transformers puts at ``act_fn``, and what the kernels call them."""


@dataclass(frozen=True, slots=True)
class FusedCounts:
    """How many operators were put in, and how many adapted layers they stand for."""

    mlps: int
    groups: int
    layers: int


def fuse_adapted_layers(model: nn.Module, *, transposed_copy: bool = True, tile_tokens: int = 0) -> FusedCounts:
    """Change ``forward`` of the adapted linear layers of a PEFT model that the operators can stand for, in place.

    Args:
        transposed_copy: keep joined FP8 weights a second time, transposed, rather than transpose them in each
            backward pass.
        tile_tokens: MLPs go through so many tokens at a time and keep nothing but their input; 0: all at once.
    """
    blocks = list(model.modules())
    mlps = [block for block in blocks if _is_mlp(block)]
    groups = [members for block in blocks if (members := _plain_members(block, SHARED_INPUT))]
    taken = {layer for block in mlps for layer in _plain_members(block, FUSED_MLP_LAYERS)}
    taken.update(layer for members in groups for layer in members)
    groups += [(layer,) for layer in blocks if is_plain(layer) and layer not in taken]
    for block in mlps:
        _fuse_mlp(block, transposed_copy, tile_tokens)
    for members in groups:
        _fuse_group(members, transposed_copy)
    return FusedCounts(len(mlps), len(groups), 3 * len(mlps) + sum(map(len, groups)))


def left_unfused(model: nn.Module) -> tuple[str, ...]:
    """Full names of what ``fuse_adapted_layers`` could not stand for: adapted layers that run PEFT's own forward, and
    MLPs whose three adapted layers are not one operator."""
    from peft.tuners.lora.layer import LoraLayer

    fused = {layer for block in model.modules() if hasattr(block, "gate_up") for layer in block.children()}
    names = []
    for name, module in model.named_modules():
        members = [getattr(module, member, None) for member in FUSED_MLP_LAYERS]
        is_split_mlp = all(isinstance(member, LoraLayer) for member in members) and not hasattr(module, "gate_up")
        is_pefts_own = isinstance(module, LoraLayer) and module not in fused and "forward" not in vars(module)
        if is_split_mlp or is_pefts_own:
            names.append(name.removeprefix("base_model.model."))
    return tuple(names)


def is_plain(layer: Any) -> bool:
    """True for a PEFT LoRA layer over a linear one, with one adapter, without dropout or a variant such as DoRA."""
    from peft.tuners.lora.layer import LoraLayer

    if not isinstance(layer, LoraLayer) or len(layer.active_adapters) != 1 or layer.lora_variant:
        return False
    name = layer.active_adapters[0]
    if name not in layer.lora_A or layer.lora_bias[name] or not isinstance(layer.lora_dropout[name], nn.Identity):
        return False
    return isinstance(layer.base_layer, FrozenLinear) or type(layer.base_layer) is nn.Linear


def packed_adapters(layers: Sequence[Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The adapters of G layers that share an input: a (G R, K) and scaled b (N, R), padded to a common rank R.

    In the type they multiply in, which the compiler makes together with the padding.
    """
    pairs, rank = _adapters(layers)
    b = torch.cat([pad(b, (0, rank - b.shape[1])) for _, b in pairs])
    return _under_each_other(pairs, rank).to(dtype), b.to(dtype)


def block_adapters(layers: Sequence[Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same as one adapter for all of them: b is (N, G R), each layer's rows in its own columns."""
    pairs, rank = _adapters(layers)
    last = len(pairs) - 1
    b = torch.cat([pad(b, (rank * g, rank * (last - g) + rank - b.shape[1])) for g, (_, b) in enumerate(pairs)])
    return _under_each_other(pairs, rank).to(dtype), b.to(dtype)


def _adapters(layers: Sequence[Any]) -> tuple[list[tuple[Tensor, Tensor]], int]:
    """A and scaled B of each layer, and the rank that all are padded to."""
    pairs = [_adapter(layer) for layer in layers]
    return pairs, fused_rank(max(a.shape[0] for a, _ in pairs))


def _under_each_other(pairs: Sequence[tuple[Tensor, Tensor]], rank: int) -> Tensor:
    return torch.cat([pad(a, (0, 0, 0, rank - a.shape[0])) for a, _ in pairs])


def _adapter(layer: Any) -> tuple[Tensor, Tensor]:
    """A (r, K) and scaled B (N, r) of the one active adapter."""
    name = layer.active_adapters[0]
    return layer.lora_A[name].weight, layer.lora_B[name].weight * layer.scaling[name]


def _plain_members(block: nn.Module, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The layers of these names where all are there and can be fused; else none."""
    members = tuple(getattr(block, name, None) for name in names)
    return members if all(is_plain(member) for member in members) else ()


def _is_mlp(block: nn.Module) -> bool:
    members = _plain_members(block, FUSED_MLP_LAYERS)
    storages = {frozen_of(layer.base_layer).storage for layer in members}
    return (
        len(storages) == 1
        and all(layer.base_layer.bias is None for layer in members)
        and type(getattr(block, "act_fn", None)).__name__ in ACTIVATION_NAMES
    )


def _is_active(layer: Any) -> bool:
    return not (layer.disable_adapters or layer.merged)


def _fuse_mlp(block: Any, transposed_copy: bool, tile_tokens: int) -> None:
    gate, up = block.gate_proj, block.up_proj
    block.gate_up = joined((gate.base_layer, up.base_layer), transposed_copy=transposed_copy)
    activation, plain = ACTIVATION_NAMES[type(block.act_fn).__name__], block.forward

    def forward(self: Any, x: Tensor) -> Tensor:
        if not _is_active(self.gate_proj):
            return plain(x)  # type: ignore[no-any-return]
        rows = flat(x)
        a, b = packed_adapters((self.gate_proj, self.up_proj), rows.dtype)
        a_down, b_down = packed_adapters((self.down_proj,), rows.dtype)
        first, second = self.gate_up.frozen(), frozen_of(self.down_proj.base_layer)
        y: Tensor = adapted_mlp(
            rows, a, b, a_down, b_down, first.tensors, second.tensors, first.storage, activation, tile_tokens
        )[0]
        return y.view(*x.shape[:-1], y.shape[-1])

    block.forward = MethodType(forward, block)


def _fuse_group(layers: Sequence[Any], transposed_copy: bool) -> None:
    first, *others = layers
    first.joined = joined([layer.base_layer for layer in layers], transposed_copy=transposed_copy) if others else None

    def product(x: Tensor) -> Tensor:
        rows = flat(x)
        a, b = block_adapters(layers, rows.dtype)
        base = first.base_layer if first.joined is None else first.joined
        frozen: Frozen = frozen_of(base)
        y: Tensor = adapted_linear(rows, a, b, frozen.tensors, frozen.storage, frozen.out_features)[0]
        return y if base.bias is None else y + base.bias.to(y.dtype)

    share_input(layers, product, is_active=_is_active)
