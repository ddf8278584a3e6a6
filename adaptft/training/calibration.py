"""What the linear layers of a model get from the first tokens of the data: for rounding their weights to FP8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from adaptft.kernels.rounding import Inputs
from adaptft.plans import CALIBRATED_AT_A_TIME
from adaptft.training.batches import Rows, boundaries


class _Moments:
    """Sums over tokens of a layer's input and its square, in float64: (K,) each."""

    def __init__(self, layer: nn.Linear) -> None:
        self.count = 0
        self.values, self.squares = torch.zeros(2, layer.in_features, dtype=torch.float64, device=layer.weight.device)

    def add(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        """A forward hook."""
        x = arguments[0].detach().flatten(end_dim=-2)
        variance, mean = torch.var_mean(x.float(), dim=0, correction=0)
        self.count += len(x)
        self.values += len(x) * mean
        self.squares += len(x) * (variance.double() + mean.double().square())

    def inputs(self) -> Inputs:
        mean = self.values / self.count
        variance = (self.squares / self.count - mean.square()).clamp(min=0)
        return Inputs(mean.float(), variance.float())


@torch.no_grad()
def inputs_of_layers(model: Any, rows: Rows, num_tokens: int) -> dict[nn.Module, Inputs]:
    """Mean and variance of what each linear layer below the head gets; nothing where ``num_tokens`` is 0.

    Args:
        model: a causal language model in 16 bit, before adapters.
        rows: as they are trained, from the first on; the same rows give the same numbers.
    """
    if not num_tokens:
        return {}
    moments = {layer: _Moments(layer) for layer in model.base_model.modules() if type(layer) is nn.Linear}
    hooks = [layer.register_forward_pre_hook(found.add) for layer, found in moments.items()]
    try:
        for inputs in _batches(rows, num_tokens, model.device):
            model.base_model(**inputs, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: found.inputs() for layer, found in moments.items() if found.count}


def _batches(rows: Rows, num_tokens: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """Rows as the base model takes them, one at a time and cut, until there are so many tokens."""
    seen = 0
    for number in range(len(rows)):
        if seen >= num_tokens:
            return
        row = {name: values[None, :CALIBRATED_AT_A_TIME] for name, values in rows[number].items()}
        seen += row["input_ids"].shape[1]
        arrays = {name: torch.from_numpy(row[name]) for name in ("input_ids", "position_ids")}
        yield send_to_device(arrays | boundaries(row["position_ids"]), device)
