"""Products of a wide operand with a matrix of small rank: what adapters do with the activations around them.

In 16 bit that is a matmul as any other. An operand in FP8 is read as it lies, half the bytes, and need not exist in
16 bit at all. ``groups`` of layers lie side by side, gate and up: each has its own columns of what is wide and its own
ranks of what is small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptft.kernels.quantize import Operand


def across_rows(x: Operand, small: Tensor, groups: int = 1) -> Tensor:
    """(T, G N) times (G N, R), by groups -> (T, G R), in the type of ``small``."""
    if x.values.is_cuda and x.scale is not None:
        from adaptft.kernels.triton_thin import across_rows_on_gpu

        return across_rows_on_gpu(x, small, groups)
    values = x.values if x.scale is None else x.values.float() * x.scale
    parts = zip(values.chunk(groups, dim=1), small.to(values.dtype).chunk(groups), strict=True)
    return _joined([part @ own for part, own in parts], dim=1).to(small.dtype)


def down_columns(x: Operand, small: Tensor, groups: int = 1) -> Tensor:
    """(T, G N) transposed times (T, G R), by groups -> (G N, R) float32."""
    if x.values.is_cuda and x.scale is not None:
        from adaptft.kernels.triton_thin import down_columns_on_gpu

        return down_columns_on_gpu(x, small, groups)
    values = x.values if x.scale is None else x.values.float() * x.scale
    parts = zip(values.chunk(groups, dim=1), small.to(values.dtype).chunk(groups, dim=1), strict=True)
    return _joined([part.t() @ own for part, own in parts], dim=0).float()


def add_low_rank(y: Tensor, z: Tensor, b: Tensor, groups: int = 1) -> None:
    """``y += z b^T`` by groups, in place: (T, G N), (T, G R), (G N, R). One trip through y; cuBLAS is slow at it."""
    if y.is_cuda:
        from adaptft.kernels.triton_thin import add_low_rank_on_gpu

        add_low_rank_on_gpu(y, z, b, groups)
        return
    for own_y, own_z, own_b in zip(y.chunk(groups, dim=1), z.chunk(groups, dim=1), b.chunk(groups), strict=True):
        own_y.addmm_(own_z, own_b.t())


def add_low_rank_and_range(y: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """The same for one layer; -> the largest absolute value of each row of the new ``y``, (T, 1) float32."""
    if y.is_cuda:
        from adaptft.kernels.triton_thin import add_low_rank_and_range_on_gpu

        return add_low_rank_and_range_on_gpu(y, z, b)
    return y.addmm_(z, b.t()).abs().amax(dim=1, keepdim=True).float()


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
