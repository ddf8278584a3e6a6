"""A frozen base on its way to the GPU and to FP8: rounded for what its layers get from the first tokens of the data.

One forward pass goes through the model. Each decoder layer comes to the GPU when the pass reaches it, runs in 16 bit as
it was loaded, and is converted; those behind it wait on the host. So no GPU holds the model in 16 bit, and a base need
only fit in FP8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from adaptft.kernels.rounding import Inputs
from adaptft.kernels.watching import Watched
from adaptft.training.batches import Rows, boundaries

HOST = torch.device("cpu")
ROW_TOKENS = 2048
"""More of a row is left out: its other tokens say little that these did not."""

Convert = Callable[[nn.Module, Mapping[nn.Module, Inputs]], int]
"""Converts the linear layers of a part of a model, in place, for their inputs; -> how many."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Which rows go through the model, and on which device."""

    rows: Rows
    """As they are trained, from the first on; the same rows give the same numbers."""
    num_tokens: int
    """0: none, and all weights are rounded to the nearest."""
    device: torch.device
    returns: bool = False
    """Back to the host it goes, to be sharded there: the device has one layer at a time."""


@torch.no_grad()
def convert_in_passing(model: Any, layers: Sequence[nn.Module], passage: Passage, convert: Convert) -> int:
    """Bring ``model`` to the device of ``passage``, or there and back, converted; -> how many linear layers were.

    Args:
        model: a PEFT model in 16 bit, wherever it was loaded; its adapters take no part.
        layers: its decoder layers.
    """
    if not passage.num_tokens:
        return convert(model if passage.returns else model.to(passage.device), {})
    outside = _outside(model, layers)
    _bring(outside, passage.device)
    linears = Watched(module for module in model.modules() if _is_frozen_linear(module))
    counts = []

    def arrive(layer: nn.Module, _: Any) -> None:
        layer.to(passage.device)

    def leave(layer: nn.Module, _: Any, __: Any) -> None:
        counts.append(convert(layer, linears.inputs(layer)))
        if passage.returns:
            layer.to(HOST)

    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_pre_hook(arrive).remove)
            hooks.callback(layer.register_forward_hook(leave).remove)
        with linears, model.disable_adapter():
            model.get_base_model().base_model(**_tokens(passage), use_cache=False)
    if passage.returns:
        _bring(outside, HOST)
    return sum(counts) + convert(model, linears.inputs(model))


def _is_frozen_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear and not module.weight.requires_grad


def _outside(model: nn.Module, layers: Sequence[nn.Module]) -> list[Tensor]:
    inside = {id(tensor) for layer in layers for tensor in (*layer.parameters(), *layer.buffers())}
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in inside]


def _bring(tensors: Iterable[Tensor], device: torch.device) -> None:
    for tensor in tensors:
        tensor.data = tensor.data.to(device)  # the same tensor: what is tied stays so


def _tokens(passage: Passage) -> dict[str, Any]:
    """The rows one after the other in one sequence, each cut, until there are so many tokens."""
    ids, positions, left = [], [], passage.num_tokens
    for number in range(len(passage.rows)):
        row, size = passage.rows[number], min(ROW_TOKENS, left)
        ids.append(row["input_ids"][:size])
        positions.append(row["position_ids"][:size])
        left -= len(ids[-1])
        if not left:
            break
    position_ids = np.concatenate(positions)[None]
    arrays = {"input_ids": torch.from_numpy(np.concatenate(ids)[None]), "position_ids": torch.from_numpy(position_ids)}
    inputs: dict[str, Any] = send_to_device(arrays | boundaries(position_ids), passage.device)
    return inputs
