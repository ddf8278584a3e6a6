"""Whole models trained in FP8: all three matmuls of each linear layer, by torchao, which scales tensor by tensor.

The weights stay what they are, in FP32 or bf16, and are quantised anew for each matmul, so that optimizer, checkpoints
and saved models see ordinary ones. Scales of whole tensors are torchao's fastest recipe: on an H200 with Qwen2.5-7B's
shape 17,361 tokens/s, with a scale for each row 14,004, in bf16 12,922.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from adaptft.kernels.frozen_linear import fits_fp8, is_named
from adaptft.optional import require


def convert_for_training(
    model: nn.Module, skipped: Iterable[str], *, pad_tokens: bool, on_gpu: bool
) -> tuple[int, int]:
    """Make the linear layers of ``model`` multiply in FP8, in place; -> how many do, and how many should.

    Off the GPU, where there is no such matmul, the same quantised values are multiplied in float32.

    Args:
        skipped: endings of names of layers that stay in 16 bit (the head, routers).
        pad_tokens: micro-batches may hold a number of tokens that is no multiple of 16, which is what the weight's
            gradient is summed over.
        on_gpu: the model will be there; what is to be sharded comes from the host.

    Raises:
        MissingPackage: torchao is not installed.
    """
    require("torchao", purpose="FP8 training of whole models")
    from torchao import float8

    skipped = tuple(skipped)

    def is_meant(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not is_named(name, skipped)

    def is_converted(module: Any, name: str) -> bool:
        return is_meant(module, name) and type(module) is nn.Linear and fits_fp8(module)

    meant = [name for name, module in model.named_modules() if is_meant(module, name)]
    plain = [name for name in meant if is_converted(model.get_submodule(name), name)]
    settings = float8.Float8LinearConfig(pad_inner_dim=pad_tokens, emulate=not on_gpu)
    float8.convert_to_float8_training(model, config=settings, module_filter_fn=is_converted)
    return sum(type(model.get_submodule(name)) is not nn.Linear for name in plain), len(meant)
