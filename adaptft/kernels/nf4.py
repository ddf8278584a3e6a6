"""bitsandbytes' NF4 weights unpacked: to 16 bit by its own operators, to FP8 by a kernel of ours.

A layer is its tensors ``[packed, absmax]``, or with double quantisation ``[packed, absmax (uint8), code, outer
absmax, offset]``. Block sizes are bitsandbytes' defaults, 64 weights and 256 scales.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaptft.kernels.quantize import E4M3_MAX, SMALLEST_SCALE

BLOCK, OUTER_BLOCK = 64, 256


def block_scales(layer: list[Tensor]) -> Tensor:
    """The float32 scale of every block of 64 weights."""
    absmax = layer[1]
    if len(layer) == 2:
        return absmax
    _, _, code, outer, offset = layer
    restored: Tensor = torch.ops.bitsandbytes.dequantize_blockwise(absmax, outer, code, OUTER_BLOCK, torch.float32)
    return restored + offset


def dequantize(layers: list[list[Tensor]], out_features: list[int], in_features: int, dtype: torch.dtype) -> Tensor:
    """-> (N, K) in ``dtype``, the layers' rows one under the other."""
    parts = [
        torch.ops.bitsandbytes.dequantize_4bit(layer[0], block_scales(layer), BLOCK, "nf4", [rows, in_features], dtype)
        for layer, rows in zip(layers, out_features, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def fp8_row_scale(layers: list[list[Tensor]], out_features: list[int], in_features: int) -> Tensor:
    """(1, N): what maps the largest weight of each row to the largest e4m3 number; NF4's largest code is 1."""
    largest = [
        block_scales(layer).view(rows, in_features // BLOCK).amax(1)
        for layer, rows in zip(layers, out_features, strict=True)
    ]
    return (torch.cat(largest) / E4M3_MAX).clamp(min=SMALLEST_SCALE).view(1, -1)


def dequantize_to_fp8(
    layers: list[list[Tensor]], out_features: list[int], in_features: int, row_scale: Tensor, *, transposed: bool
) -> Tensor:
    """-> e4m3 over ``row_scale`` (1, N): (N, K), or (K, N) where ``transposed``.

    ``in_features`` is a multiple of 64, so that a block of NF4 lies in one row.
    """
    if row_scale.is_cuda:
        from adaptft.kernels.triton_nf4 import dequantize_to_fp8_on_gpu

        return dequantize_to_fp8_on_gpu(layers, out_features, in_features, row_scale, transposed=transposed)
    weight = dequantize(layers, out_features, in_features, torch.float32) / row_scale.t()
    quantized = weight.to(torch.float8_e4m3fn)
    return quantized.t().contiguous() if transposed else quantized
