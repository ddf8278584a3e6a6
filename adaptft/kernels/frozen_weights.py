"""Frozen weights in every storage, and the two matmuls a frozen weight takes part in.

A weight is a list of tensors and the name of its storage, so that it can pass through an opaque operator; the output
rows of several layers that share an input may be one weight.

========== ============================================================== ===================
storage    tensors                                                        matmuls run in
========== ============================================================== ===================
dense      weight (N, K)                                                  its own 16-bit type
fp8        e4m3 (N, K), scale (1, N)[, e4m3 (K, N): the transposed copy]   FP8
nf4        per layer: packed, absmax[, code, outer absmax, offset]        16 bit
nf4_fp8    the same, then row scale (1, N)                                FP8
========== ============================================================== ===================

Forward is ``x W^T``, the gradient of the input ``dy W``. In FP8 the row scales of W are folded into ``dy`` before
it is quantised, which is exact, so one FP8 weight serves both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaptft.kernels.fp8_matmul import fp8_matmul
from adaptft.kernels.nf4 import dequantize, dequantize_to_fp8
from adaptft.kernels.quantize import Operand, quantize_rows, transpose_fp8


def is_fp8(storage: str) -> bool:
    """True for what takes part in FP8 matmuls."""
    return storage in ("fp8", "nf4_fp8")


class Frozen(NamedTuple):
    """A frozen weight as an operator gets it."""

    tensors: list[Tensor]
    storage: str
    out_features: list[int]
    """One number for each of the layers whose rows are one under the other here."""
    in_features: int

    @property
    def is_fp8(self) -> bool:
        """True where both matmuls run in FP8."""
        return is_fp8(self.storage)

    @property
    def row_scale(self) -> Tensor | None:
        """(1, N) float32: the scales of the FP8 rows; None in 16 bit."""
        if self.storage == "nf4_fp8":
            return self.tensors[-1]
        return self.tensors[1] if self.storage == "fp8" else None


def as_operand(x: Tensor, weight: Frozen, column_factor: Tensor | None = None) -> Operand:
    """``x``, quantised where ``weight`` multiplies in FP8 (with ``column_factor`` folded in)."""
    return quantize_rows(x, column_factor) if weight.is_fp8 else Operand(x, None)


def forward(x: Operand, weight: Frozen, dtype: torch.dtype) -> Tensor:
    """(T, K) -> (T, N): ``x W^T``."""
    if x.scale is None:
        return x.values @ _in_16_bit(weight, x.values.dtype).t()
    assert weight.row_scale is not None
    return fp8_matmul(x.values, _fp8_rows(weight), x.scale, weight.row_scale, dtype)


def backward(gradient: Operand, weight: Frozen, dtype: torch.dtype) -> Tensor:
    """(T, N) -> (T, K): ``dy W``; in FP8 ``dy`` comes with W's row scales folded in."""
    if gradient.scale is None:
        return gradient.values @ _in_16_bit(weight, gradient.values.dtype)
    return fp8_matmul(gradient.values, _fp8_columns(weight), gradient.scale, None, dtype)


def _in_16_bit(weight: Frozen, dtype: torch.dtype) -> Tensor:
    return weight.tensors[0].to(dtype) if weight.storage == "dense" else dequantize(*_nf4(weight), dtype)


def _fp8_rows(weight: Frozen) -> Tensor:
    if weight.storage == "fp8":
        return weight.tensors[0]
    return dequantize_to_fp8(*_nf4(weight), weight.tensors[-1], transposed=False)


def _fp8_columns(weight: Frozen) -> Tensor:
    """(K, N): the copy that is kept, or made for this matmul alone."""
    if weight.storage == "fp8":
        return weight.tensors[2] if len(weight.tensors) > 2 else transpose_fp8(weight.tensors[0])
    return dequantize_to_fp8(*_nf4(weight), weight.tensors[-1], transposed=True)


def _nf4(weight: Frozen) -> tuple[list[list[Tensor]], list[int], int]:
    tensors = weight.tensors[:-1] if weight.storage == "nf4_fp8" else weight.tensors
    each = len(tensors) // len(weight.out_features)
    layers = [tensors[start : start + each] for start in range(0, len(tensors), each)]
    return layers, weight.out_features, weight.in_features
