"""Products of a wide operand with a matrix of small rank: what adapters do with the activations around them.

In 16 bit that is a matmul as any other. An operand in FP8 is read as it lies, half the bytes, and need not exist in
16 bit at all.
"""

from __future__ import annotations

from torch import Tensor

from adaptft.kernels.quantize import Operand


def across_rows(x: Operand, small: Tensor) -> Tensor:
    """(T, N) times (N, R) -> (T, R), in the type of ``small``."""
    if x.scale is None:
        return x.values @ small
    if x.values.is_cuda:
        from adaptft.kernels.triton_thin import across_rows_on_gpu

        return across_rows_on_gpu(x, small)
    return ((x.values.float() * x.scale) @ small.float()).to(small.dtype)


def down_columns(x: Operand, small: Tensor) -> Tensor:
    """(T, N) transposed times (T, R) -> (N, R) float32."""
    if x.scale is None:
        return (x.values.t() @ small).float()
    if x.values.is_cuda:
        from adaptft.kernels.triton_thin import down_columns_on_gpu

        return down_columns_on_gpu(x, small)
    return (x.values.float() * x.scale).t() @ small.float()


def add_low_rank(y: Tensor, z: Tensor, b: Tensor) -> None:
    """``y += z b^T`` in place; (T, N), (T, R), (N, R). One trip through y, which cuBLAS takes slowly."""
    if y.is_cuda:
        from adaptft.kernels.triton_thin import add_low_rank_on_gpu

        add_low_rank_on_gpu(y, z, b)
    else:
        y.addmm_(z, b.t())


def add_low_rank_and_range(y: Tensor, z: Tensor, b: Tensor) -> Tensor:
    """The same; -> the largest absolute value of each row of the new ``y``, (T, 1) float32."""
    if y.is_cuda:
        from adaptft.kernels.triton_thin import add_low_rank_and_range_on_gpu

        return add_low_rank_and_range_on_gpu(y, z, b)
    return y.addmm_(z, b.t()).abs().amax(dim=1, keepdim=True).float()


def columns(x: Operand, start: int, end: int) -> Operand:
    """Some columns of an operand; its scales belong to rows."""
    return Operand(x.values[:, start:end], x.scale)
