"""Proof of what an export is, from the headers of its files: compressed layers, bits a weight, bytes."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DTYPE_BITS = {"F64": 64, "I64": 64, "F32": 32, "I32": 32, "F16": 16, "BF16": 16, "I8": 8, "U8": 8, "F8_E4M3": 8}
_COMPRESSED_DTYPES = ("F8_E4M3", "I8")
_PACKED_SUFFIX, _WEIGHT_SUFFIX = ".weight_packed", ".weight"
_COMPANION_SUFFIXES = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """What the safetensors headers of a folder say."""

    compressed_modules: frozenset[str]
    bits_per_weight: float
    """Of the compressed layers with their scales and zero points; 16 or 32 where none is compressed."""
    num_bytes: int


def count_files(folder: Path) -> FileCount:
    """Read the headers (not the weights) of every safetensors file in ``folder``."""
    tensors: dict[str, Any] = {}
    num_bytes = 0
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_header(path)
        num_bytes += path.stat().st_size
    modules = frozenset(filter(None, (_compressed_module(name, entry) for name, entry in tensors.items())))
    bits, weights = 0, 0
    for name, entry in tensors.items():
        if modules and not _belongs_to(name, modules):
            continue
        size = math.prod(entry["shape"])
        bits += size * _DTYPE_BITS[entry["dtype"]]
        if name.endswith(_PACKED_SUFFIX):
            weights += size * 8
        elif name.endswith(_WEIGHT_SUFFIX):
            weights += size
    return FileCount(compressed_modules=modules, bits_per_weight=bits / max(weights, 1), num_bytes=num_bytes)


def read_header(path: Path) -> dict[str, Any]:
    """Name to ``dtype``, ``shape`` and offsets of every tensor in a safetensors file."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header


def _compressed_module(name: str, entry: dict[str, Any]) -> str | None:
    if name.endswith(_PACKED_SUFFIX):
        return name.removesuffix(_PACKED_SUFFIX)
    if name.endswith(_WEIGHT_SUFFIX) and entry["dtype"] in _COMPRESSED_DTYPES:
        return name.removesuffix(_WEIGHT_SUFFIX)
    return None


def _belongs_to(name: str, modules: frozenset[str]) -> bool:
    module, _, leaf = name.rpartition(".")
    return module in modules and f".{leaf}" in (_PACKED_SUFFIX, _WEIGHT_SUFFIX, *_COMPANION_SUFFIXES)
