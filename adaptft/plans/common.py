"""What plans of every kind are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
Dtype = Literal["fp32", "fp16", "bf16"]
DTYPE_NAMES: dict[Dtype, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""A plan's words for types in torch's, which checkpoints, vLLM and ``torch_dtype`` use too."""
SHORT_DTYPES: dict[str, Dtype] = {name: short for short, name in DTYPE_NAMES.items()}
DTYPE_BYTES: dict[Dtype, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
Source = Literal["policy", "user"]


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """A value, why it was taken, and by whom."""

    value: T
    reason: str
    source: Source = "policy"
