"""One complete way to run with its predictions, in words, and which of several is taken."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.plans import Checkpointing, Decisions, MemoryEstimate, Placement, SpeedEstimate
from adaptft.policy.memory import fits
from adaptft.policy.setting import Setting

SAME_SPEED = 1.03
"""Plans within 3 % of the fastest count as equally fast; the one that needs least memory is taken."""
ALLOWANCES = ((frozenset({"cpu", "single", "ddp"}), 1.10), (frozenset({"fsdp2"}), 1.05))
"""Plainest first: whole replicas exchange least and go wrong least, and FSDP2 leaves more memory free than ZeRO-2; the
times of arrangements are not known better than this."""
BASE_ALLOWANCE = 1.10
"""The same for a base in 16 bit over one in 4 bits, where nobody names the kind."""
ENOUGH_TOKENS = 8192
"""A micro-batch of so many tokens keeps any GPU busy; used where no speed is predicted."""
GATHERING = {"zero2": 1.1, "zero3": 1.2, "fsdp2": 1.2}
"""How much longer a step takes where weights are gathered; used there, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One complete way to run, with its predictions."""

    setting: Setting
    decisions: Decisions
    memory: MemoryEstimate
    speed: SpeedEstimate | None

    @property
    def fits(self) -> bool:
        """True where its need stays below the free memory less a margin."""
        return fits(self.memory)

    @property
    def placement(self) -> Placement:
        """As decided."""
        return self.decisions.placement.value

    @property
    def relative_time(self) -> float:
        """Seconds a sequence; without a speed model, recomputation, small micro-batches and gathers in proportion."""
        checkpointing, batch, placement = self.decisions.checkpointing.value, self.decisions.batch.value, self.placement
        if self.speed:
            return self.speed.step_seconds / batch.global_batch_size
        tokens = min(batch.micro_batch_tokens, ENOUGH_TOKENS) / ENOUGH_TOKENS
        filled = 1.0 if placement.strategy == "cpu" else tokens
        alone = (1 + checkpointing.layers / checkpointing.of / 3) * (1.1 - 0.1 * filled)
        return alone * GATHERING.get(placement.strategy, 1.0) / max(placement.num_gpus, 1)

    @property
    def in_words(self) -> str:
        """``lora, bf16, adamw, fsdp2 over 2 GPUs, micro_batch_size 2, 12 of 28 layers checkpointed``."""
        method, checkpointing = self.decisions.method.value, self.decisions.checkpointing.value
        there = len(self.setting.machine.gpus) * self.placement.nodes
        spread = f"{spread_in_words(self.placement)}, " if there > 1 else ""
        return (
            f"{method.train_type}, {method.base_storage}, {self.decisions.optimizer.value.name}, {spread}"
            f"micro_batch_size {self.decisions.batch.value.micro_batch_size}, "
            f"{layers_in_words(checkpointing)} checkpointed"
        )


def spread_in_words(placement: Placement) -> str:
    """``fsdp2 over 8 GPUs``, ``1 GPU``; and how many share each row."""
    gpus = f"{placement.num_gpus} GPU{'s' * (placement.num_gpus != 1)}"
    size = placement.sequence_parallel_size
    shared = f", {size} to a row" if size > 1 else ""
    return f"{placement.strategy} over {gpus}{shared}" if placement.num_gpus > 1 else gpus


def layers_in_words(checkpointing: Checkpointing) -> str:
    """``12 of 28 layers``, or every or no layer."""
    if checkpointing.layers in (0, checkpointing.of):
        return "every layer" if checkpointing.layers else "no layer"
    return f"{checkpointing.layers} of {checkpointing.of} layers"


def fastest(fitting: list[Candidate]) -> Candidate:
    """The fastest, and of equally fast ones the leanest; what is better or plainer may be a little slower."""
    best = min(candidate.relative_time for candidate in fitting)
    whole_bases = [one for one in fitting if one.decisions.method.value.train_type != "qlora"]
    if whole_bases and min(one.relative_time for one in whole_bases) <= best * BASE_ALLOWANCE:
        fitting = whole_bases
        best = min(one.relative_time for one in fitting)
    for strategies, allowance in ALLOWANCES:
        plain = [one for one in fitting if one.placement.strategy in strategies]
        if plain and min(one.relative_time for one in plain) <= best * allowance:
            return _leanest_of_the_fastest(plain)
    return _leanest_of_the_fastest(fitting)


def _leanest_of_the_fastest(fitting: list[Candidate]) -> Candidate:
    best = min(candidate.relative_time for candidate in fitting)
    equal = [candidate for candidate in fitting if candidate.relative_time <= best * SAME_SPEED]
    return min(equal, key=lambda candidate: candidate.memory.needed_bytes)
