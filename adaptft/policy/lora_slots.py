"""How vLLM must be told to hold LoRA adapters: slots, and the rank they are allocated at.

Source: vLLM 0.32, ``config/lora.py`` (the ranks) and ``lora/peft_helper.py`` (what is checked: the largest
of ``r`` and ``rank_pattern``; DoRA, biases and whole trained modules are refused).
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.errors import RequestError
from adaptft.facts import AdapterShape, ModelShape

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MOST_SLOTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSlots:
    """``count`` adapters may mix in one batch, each slot of ``max_rank``; the rest wait in host memory."""

    count: int
    max_rank: int
    reason: str


def plan_slots(adapters: tuple[AdapterShape, ...]) -> LoraSlots | None:
    """The smallest slots that hold all ``adapters``; None where there are none.

    Raises:
        RequestError: an adapter that vLLM cannot hold unmerged.
    """
    if not adapters:
        return None
    for adapter in adapters:
        _check_servable(adapter)
    largest = max(adapters, key=lambda adapter: adapter.max_rank)
    rank = next(rank for rank in VLLM_RANKS if rank >= largest.max_rank)
    by_layer = f" (r {largest.rank}, more in some layers)" if largest.rank != largest.max_rank else ""
    return LoraSlots(
        count=min(len(adapters), MOST_SLOTS),
        max_rank=rank,
        reason=f"smallest rank of vLLM that holds {largest.name}'s {largest.max_rank}{by_layer}",
    )


def slot_bytes(model: ModelShape, slots: LoraSlots | None, bytes_per_weight: int) -> int:
    """Memory of all slots: per linear layer ``max_rank * (in + out)`` weights a slot."""
    if slots is None:
        return 0
    per_rank = sum((linear.in_features + linear.out_features) * linear.count for linear in model.linears)
    return slots.count * slots.max_rank * per_rank * bytes_per_weight


def _check_servable(adapter: AdapterShape) -> None:
    way_out = f"Merge it: adaptft export --adapters {adapter.path} --format merged, then serve the result."
    if adapter.max_rank > VLLM_RANKS[-1]:
        raise RequestError(
            f"Adapter {adapter.name} has rank {adapter.max_rank}; vLLM serves at most {VLLM_RANKS[-1]} unmerged.",
            fix=way_out,
        )
    if adapter.special_features:
        raise RequestError(
            f"Adapter {adapter.name} uses {', '.join(adapter.special_features)}, which vLLM cannot serve unmerged.",
            fix=way_out,
        )
