"""What a plan did not take, and why: other arrangements and micro-batches, every activation kept, FP8."""

from __future__ import annotations

from collections.abc import Iterator

from adaptft.plans import MemoryEstimate, Rejected
from adaptft.policy.candidate import SAME_SPEED, Candidate, fastest, layers_in_words, spread_in_words
from adaptft.policy.memory import FREE_MARGIN
from adaptft.policy.precision import fp8_left_out
from adaptft.policy.search import uncheckpointed
from adaptft.units import format_bytes

TIMES = 1.9
"""Beyond this a pace is said as a multiple."""
WORTH_A_WORD = 0.05
"""Of a step: less is not mentioned."""


def need(candidate: Candidate) -> int:
    """Bytes that must be free for it."""
    return candidate.memory.needed_bytes


def too_much(memory: MemoryEstimate) -> str:
    """``needs 31.2 GiB of 22.0 GiB free: 9.2 GiB too much``, and when it does where that is not in a step."""
    needed, free = format_bytes(memory.needed_bytes), format_bytes(memory.capacity_bytes)
    lack = memory.needed_bytes - memory.capacity_bytes
    when = " while it is loaded" if memory.moment == "load" else ""
    return f"needs {needed} of {free} free{when}: " + (
        f"{format_bytes(lack)} too much" if lack > 0 else f"less than {FREE_MARGIN:.0%} would stay free"
    )


def not_taken(chosen: Candidate, found: list[Candidate]) -> list[Rejected]:
    """All that was weighed beside ``chosen``; ``found`` has the best of each arrangement and micro-batch."""
    return [*_spreads(chosen, found), *_micro_batches(chosen, found), *_checkpointing(chosen), *_fp8(chosen)]


def _spreads(chosen: Candidate, found: list[Candidate]) -> Iterator[Rejected]:
    """The best that each other arrangement of GPUs could do."""
    others: dict[str, list[Candidate]] = {}
    for candidate in found:
        if candidate.placement != chosen.placement:
            others.setdefault(spread_in_words(candidate.placement), []).append(candidate)
    for spread, those in others.items():
        fitting = [candidate for candidate in those if candidate.fits]
        best = fastest(fitting) if fitting else min(those, key=need)
        kind = best.decisions.method.value.train_type
        words = f"{kind}, " if kind != chosen.decisions.method.value.train_type else ""
        yield Rejected(f"{words}{spread}", _why_not(best, chosen))
    if chosen.placement.is_sharded:
        yield Rejected("layer_split", "one GPU works while the others wait: for inference, not for training")


def _micro_batches(chosen: Candidate, found: list[Candidate]) -> Iterator[Rejected]:
    """For each other micro-batch the best that it could do, and why that is not better."""
    for candidate in found:
        size = candidate.decisions.batch.value.micro_batch_size
        same = candidate.decisions.placement == chosen.decisions.placement
        if same and size != chosen.decisions.batch.value.micro_batch_size:
            yield Rejected(f"micro_batch_size {size}", _why_not(candidate, chosen))


def _why_not(candidate: Candidate, chosen: Candidate) -> str:
    if not candidate.fits:
        return too_much(candidate.memory)
    checkpointing = candidate.decisions.checkpointing.value
    slower = candidate.relative_time / chosen.relative_time
    if slower > SAME_SPEED:
        pace = f"{slower - 1:.0%} slower" if slower < TIMES else f"{slower:.1f} times the time"
        layers = f", {layers_in_words(checkpointing)} checkpointed" if checkpointing.layers else ""
        return pace + layers + _waits(candidate)
    if candidate.placement.strategy != chosen.placement.strategy:
        gain = 1 / slower - 1
        return f"{gain:.0%} faster as predicted, too little for it" if gain > WORTH_A_WORD else "no faster"
    return f"no faster, and {format_bytes(need(candidate) - need(chosen))} more memory"


def _waits(candidate: Candidate) -> str:
    """How much of the step is spent waiting for other GPUs, where it is worth a word."""
    share = candidate.speed.waiting_seconds / candidate.speed.step_seconds if candidate.speed else 0.0
    return f", {share:.0%} of each step waiting for other GPUs" if share > WORTH_A_WORD else ""


def _checkpointing(chosen: Candidate) -> Iterator[Rejected]:
    """What the same plan would need if no layer were computed twice."""
    if chosen.decisions.checkpointing.value.layers and chosen.setting.request.gradient_checkpointing is None:
        whole = uncheckpointed(chosen)
        yield Rejected(f"{whole.decisions.precision.value.compute} without checkpointing", too_much(whole.memory))


def _fp8(chosen: Candidate) -> Iterator[Rejected]:
    """Why a run on a GPU, 4-bit bases left aside, does without FP8."""
    setting = chosen.setting
    precision, method = chosen.decisions.precision.value, chosen.decisions.method.value
    if precision.compute != "fp8" and setting.gpu is not None and method.train_type != "qlora":
        yield Rejected("FP8", fp8_left_out(setting.gpu, setting.model, method.train_type, setting.request))
