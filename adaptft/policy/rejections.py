"""What a plan did not take, and why: other micro-batches, every activation kept, FP8."""

from __future__ import annotations

from collections.abc import Iterator

from adaptft.plans import MemoryEstimate, Rejected
from adaptft.policy.memory import FREE_MARGIN
from adaptft.policy.precision import fp8_left_out
from adaptft.policy.search import SAME_SPEED, Candidate, Setting, layers_in_words, uncheckpointed
from adaptft.units import format_bytes


def need(candidate: Candidate) -> int:
    """Bytes that must be free for it."""
    return candidate.memory.needed_bytes


def too_much(memory: MemoryEstimate) -> str:
    """``needs 31.2 GiB of 22.0 GiB free: 9.2 GiB too much``."""
    needed, free = format_bytes(memory.needed_bytes), format_bytes(memory.capacity_bytes)
    lack = memory.needed_bytes - memory.capacity_bytes
    return f"needs {needed} of {free} free: " + (
        f"{format_bytes(lack)} too much" if lack > 0 else f"less than {FREE_MARGIN:.0%} would stay free"
    )


def not_taken(setting: Setting, chosen: Candidate, found: list[Candidate]) -> list[Rejected]:
    """All that was weighed beside ``chosen``; ``found`` has the best of each micro-batch."""
    return [*_micro_batches(chosen, found), *_checkpointing(setting, chosen), *_fp8(setting, chosen)]


def _micro_batches(chosen: Candidate, found: list[Candidate]) -> Iterator[Rejected]:
    """For each other micro-batch the best that it could do, and why that is not better."""
    for candidate in found:
        size = candidate.decisions.batch.value.micro_batch_size
        if size != chosen.decisions.batch.value.micro_batch_size:
            yield Rejected(f"micro_batch_size {size}", _why_not(candidate, chosen))


def _why_not(candidate: Candidate, chosen: Candidate) -> str:
    if not candidate.fits:
        return too_much(candidate.memory)
    checkpointing = candidate.decisions.checkpointing.value
    slower = candidate.relative_time / chosen.relative_time
    if slower > SAME_SPEED:
        return f"{slower - 1:.0%} slower" + (
            f", {layers_in_words(checkpointing)} checkpointed" if checkpointing.layers else ""
        )
    return f"no faster, and {format_bytes(need(candidate) - need(chosen))} more memory"


def _checkpointing(setting: Setting, chosen: Candidate) -> Iterator[Rejected]:
    """What the same plan would need if no layer were computed twice."""
    if chosen.decisions.checkpointing.value.layers and setting.request.gradient_checkpointing is None:
        whole = uncheckpointed(setting, chosen)
        yield Rejected(f"{whole.decisions.precision.value.compute} without checkpointing", too_much(whole.memory))


def _fp8(setting: Setting, chosen: Candidate) -> Iterator[Rejected]:
    """Why a run on a GPU, 4-bit bases left aside, does without FP8."""
    precision, method = chosen.decisions.precision.value, chosen.decisions.method.value
    if precision.compute != "fp8" and setting.gpu is not None and method.train_type != "qlora":
        yield Rejected("FP8", fp8_left_out(setting.gpu, setting.model, method.train_type, setting.request))
