"""Layers that share an input, as one: the first, which is called first, computes for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor

Forward = Callable[[Tensor], Tensor]


def flat(x: Tensor) -> Tensor:
    """(..., K) -> (T, K), in autocast's type where that is on, as its linear layers would take it."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        x = x.to(torch.get_autocast_dtype(kind))
    return x.reshape(-1, x.shape[-1])


def joined_bias(layers: Sequence[Any]) -> Tensor | None:
    """The biases of linear layers one after the other, zeros where one has none; None where none has."""
    given = [layer.bias for layer in layers if layer.bias is not None]
    if not given:
        return None
    return torch.cat([given[0].new_zeros(x.out_features) if x.bias is None else x.bias for x in layers])


def share_input(layers: Sequence[Any], product: Forward, *, is_active: Callable[[Any], bool] = lambda _: True) -> None:
    """Have ``product`` compute for all ``layers``, which are called one after the other with the same input.

    Args:
        layers: linear ones; their ``forward`` is changed in place.
        product: (..., K) -> (T, N), their outputs side by side, biases included.
        is_active: False where a layer does better with its own ``forward`` at that time.
    """
    first, *others = layers
    group = _Group(product, [layer.out_features for layer in layers])
    first.forward = MethodType(_computing(group, first.forward, is_active), first)
    for number, layer in enumerate(others):
        layer.forward = MethodType(_handing_out(group, number, layer.forward, is_active), layer)


@torch.library.custom_op("adaptft::side_by_side", mutates_args=())
def side_by_side(parts: list[Tensor]) -> Tensor:
    """(T, N1), (T, N2), ... -> (T, N1 + N2 + ...).

    Opaque: the compiler would make each part and its place in the whole in one kernel, which asks of every value which
    part it belongs to.
    """
    return torch.cat(parts, dim=1)


@side_by_side.register_fake
def _(parts: list[Tensor]) -> Tensor:
    return parts[0].new_empty(parts[0].shape[0], sum(part.shape[1] for part in parts))


class _Parted(torch.autograd.Function):
    """Columns of a product as tensors of their own: views would keep the whole product alive."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, columns: list[int]) -> tuple[Tensor, ...]:
        return tuple(part.contiguous() for part in torch.split(whole, columns, dim=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return side_by_side([gradient.contiguous() for gradient in gradients]), None


def _parted(whole: Tensor, columns: list[int]) -> tuple[Tensor, ...]:
    if len(columns) == 1:
        return (whole,)
    parts: tuple[Tensor, ...] = _Parted.apply(whole, columns)  # type: ignore[no-untyped-call]
    return parts


class _Group:
    """What computes for all, and the parts of its last result that are still to be handed out."""

    def __init__(self, product: Forward, rows: list[int]) -> None:
        self.product, self.rows = product, rows
        self.waiting: tuple[Tensor, ...] = ()


def _computing(group: _Group, plain: Forward, is_active: Callable[[Any], bool]) -> Callable[[Any, Tensor], Tensor]:
    def compute(self: Any, x: Tensor) -> Tensor:
        if not is_active(self):
            return plain(x)
        first, *rest = _parted(group.product(x), group.rows)
        first, *rest = (part.view(*x.shape[:-1], part.shape[-1]) for part in (first, *rest))
        group.waiting = tuple(rest)
        return first

    return compute


def _handing_out(
    group: _Group, number: int, plain: Forward, is_active: Callable[[Any], bool]
) -> Callable[[Any, Tensor], Tensor]:
    def hand_out(self: Any, x: Tensor) -> Tensor:
        if not is_active(self):
            return plain(x)
        part = group.waiting[number]
        if number + 2 == len(group.rows):
            group.waiting = ()
        return part

    return hand_out
