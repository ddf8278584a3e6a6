"""Put the trained FP8 operators into a whole model: its modules and parameters stay, only ``forward`` is another.

Found by structure, as :mod:`adaptft.kernels.fusing` does it. Optimizer, checkpoints and results see ordinary weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn

from adaptft.kernels.converting import fits_fp8, is_named
from adaptft.kernels.fusing import ACTIVATION_NAMES, SHARED_INPUT
from adaptft.kernels.sharing import flat, joined_bias, share_input
from adaptft.kernels.trained_linear import trained_linear
from adaptft.kernels.trained_mlp import trained_mlp
from adaptft.plans import FUSED_MLP_LAYERS


def train_in_fp8(model: nn.Module, skipped: Iterable[str]) -> tuple[int, int]:
    """Make the linear layers of ``model`` multiply in FP8, in place; -> how many do, and how many should.

    Off the GPU, where there is no such matmul, the same quantised values are multiplied in float32.

    Args:
        skipped: endings of names of layers that stay in 16 bit (the head, routers).
    """
    skipped = tuple(skipped)
    meant = {
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not is_named(name, skipped)
    }
    able = {module for module in meant if type(module) is nn.Linear and fits_fp8(module)}
    left = set(able)
    for block in list(model.modules()):
        for names, fuse in ((FUSED_MLP_LAYERS, _fuse_mlp), (SHARED_INPUT, _share)):
            members = [getattr(block, name, None) for name in names]
            if left.issuperset(members) and fuse(block, members):
                left.difference_update(members)
    for layer in left:
        _share(layer, [layer])
    return len(able), len(meant)


def _fuse_mlp(block: Any, layers: Sequence[Any]) -> bool:
    """Whether the block is one that the operator can stand for; then it does."""
    activation = ACTIVATION_NAMES.get(type(getattr(block, "act_fn", None)).__name__)
    if activation is None or any(layer.bias is not None for layer in layers):
        return False

    def forward(self: Any, x: Tensor) -> Tensor:
        gate, up, down = (getattr(self, name).weight for name in FUSED_MLP_LAYERS)
        y: Tensor = trained_mlp(flat(x), gate, up, down, activation)[0]
        return y.view(*x.shape[:-1], y.shape[-1])

    block.forward = MethodType(forward, block)
    return True


def _share(_: Any, layers: Sequence[Any]) -> bool:
    def product(x: Tensor) -> Tensor:
        y: Tensor = trained_linear(flat(x), [layer.weight for layer in layers])[0]
        bias = joined_bias(layers)
        return y if bias is None else y + bias.to(y.dtype)

    share_input(layers, product)
    return True
