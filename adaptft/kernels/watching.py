"""What linear layers get while a model runs: mean and variance of each channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaptft.kernels.rounding import Inputs


@dataclass(slots=True)
class _Moments:
    """Sums over tokens of a layer's input and its square, in float64: (K,) each."""

    count: int = 0
    values: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        """A forward hook."""
        x = arguments[0].detach().flatten(end_dim=-2)
        variance, mean = torch.var_mean(x.float(), dim=0, correction=0)
        self.count += len(x)
        self.values += len(x) * mean.double()
        self.squares += len(x) * (variance.double() + mean.double().square())

    def inputs(self) -> Inputs:
        mean = torch.as_tensor(self.values / self.count)
        variance = (self.squares / self.count - mean.square()).clamp(min=0)
        return Inputs(mean.float(), variance.float())


class Watched:
    """Inside the block, what linear layers get is summed up."""

    def __init__(self, linears: Iterable[nn.Module]) -> None:
        self._moments = {linear: _Moments() for linear in linears}
        self._handles: list[Any] = []

    def __enter__(self) -> Watched:
        self._handles = [linear.register_forward_pre_hook(found.add) for linear, found in self._moments.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def inputs(self, part: nn.Module) -> dict[nn.Module, Inputs]:
        """Of the layers of ``part`` so far; of one that nothing has reached, an expert, there is none."""
        found = ((module, self._moments.get(module)) for module in part.modules())
        return {module: moments.inputs() for module, moments in found if moments is not None and moments.count}
