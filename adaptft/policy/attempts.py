"""In which order of quality a plan is sought: kind of training, precision and optimizer, each in all arrangements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import Decision, MemoryEstimate, Precision
from adaptft.policy.candidate import Candidate
from adaptft.policy.memory import FREE_MARGIN, fits
from adaptft.policy.methods import choose_train_types
from adaptft.policy.precision import precision_candidates
from adaptft.policy.search import candidates, suits
from adaptft.policy.setting import Setting, settle, settle_larger_steps, settle_shared_rows
from adaptft.policy.wishes import has_bitsandbytes
from adaptft.requests import TrainRequest, TrainType

Kind = tuple[TrainType, bool | None]
"""A kind of training, and whether its weights are sharded; None: either."""
UNNAMED: tuple[tuple[Kind, ...], ...] = (
    (("lora", False),),
    (("lora", True), ("qlora", False)),
    (("qlora", True),),
)
"""Where nobody names a kind: gathering a 16-bit base and keeping a whole 4-bit one are weighed by their time."""


def attempts(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest, *, extremes: bool = False
) -> Iterator[list[Candidate]]:
    """All candidates of the same quality at a time, best quality first; a later list is for less memory.

    It ends where something fits. No list is empty.

    Args:
        extremes: only the smallest and the largest micro-batch of each arrangement.

    Raises:
        RequestError, MachineError, MissingPackage: wishes that cannot be met.
    """
    seen: list[Candidate] = []
    for settings in _stages(machine, model, dataset, request, seen):
        for found in _in(settings, extremes=extremes):
            yield found
            seen += found
        if any(candidate.fits for candidate in seen):
            return


def _stages(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest, seen: list[Candidate]
) -> Iterator[tuple[Setting, ...]]:
    """Arrangements in which each GPU has rows of its own; then, where nothing of that fits, those of last resort.

    GPUs share rows where the rows are what does not fit (or where the user says so), and shards spread over GPUs that
    the step has no rows for, so that the step grows.
    """

    def sharing() -> tuple[Setting, ...]:
        return settle_shared_rows(machine, model, dataset, request)

    if (request.sequence_parallel_size or 1) > 1:
        yield sharing()
        return
    yield settle(machine, model, dataset, request)
    may_share = request.sequence_parallel_size is None
    first = may_share and _rows_are_too_long(seen)
    if first:
        yield sharing()
    yield settle_larger_steps(machine, model, dataset, request)
    if may_share and not first and _rows_are_too_long(seen):
        yield sharing()


def _rows_are_too_long(seen: list[Candidate]) -> bool:
    return any(rows_are_too_long(candidate.memory) for candidate in seen)


def rows_are_too_long(memory: MemoryEstimate) -> bool:
    """True where what does not fit would, were it not for what the rows leave behind on their way."""
    rows = memory.activations_bytes + memory.logits_bytes + memory.workspace_bytes
    return not fits(memory) and memory.needed_bytes - rows <= memory.capacity_bytes * (1 - FREE_MARGIN)


def _in(settings: tuple[Setting, ...], *, extremes: bool) -> Iterator[list[Candidate]]:
    if not settings:
        return
    types = choose_train_types(settings[0].request, settings[0].machine.software)
    tiers = UNNAMED if len(types) > 1 else tuple(((kind, None),) for kind in types)
    for tier in tiers:
        for lists in zip_longest(*(_of_kind(settings, kind, extremes=extremes) for kind in tier), fillvalue=[]):
            found = [candidate for each in lists for candidate in each]
            if found:
                yield found


def _of_kind(settings: tuple[Setting, ...], kind: Kind, *, extremes: bool) -> Iterator[list[Candidate]]:
    train_type, sharded = kind
    some = [one for one in settings if sharded in (None, one.placement.value.is_sharded)]
    if not some:
        return
    precisions = [_precisions(one, train_type) for one in some]
    for number, precision in enumerate(precisions[0]):
        for optimizer in _optimizers(some[0], train_type, precision.value):
            yield [
                candidate
                for one, its in zip(some, precisions, strict=True)
                if suits(one.placement.value, train_type, optimizer, one.request.strategy)
                for candidate in candidates(one, train_type, its[number], optimizer, extremes=extremes)
            ]


def _precisions(setting: Setting, train_type: TrainType) -> tuple[Decision[Precision], ...]:
    """As many for each arrangement; 4-bit weights in shards are bitsandbytes', which unpacks them to 16 bit."""
    request = setting.request
    if train_type == "qlora" and setting.placement.value.is_sharded:
        request = replace(request, fp8=False)
    return precision_candidates(setting.gpu, setting.machine.cpu, setting.model, request, train_type)


def _optimizers(setting: Setting, train_type: TrainType, precision: Precision) -> tuple[str, ...]:
    """AdamW; for whole models on the GPU 8-bit states as well, where bitsandbytes is there.

    FP32 weights with 8-bit states come before bf16 weights: the states lose less than the weights would.
    """
    if setting.request.optim:
        return (setting.request.optim,)
    lean = train_type == "full" and setting.gpu is not None and precision.compute != "fp32"
    return ("adamw", "adamw_8bit") if lean and has_bitsandbytes(setting.machine.software) else ("adamw",)


def leanest_fitting(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest
) -> Candidate | None:
    """Of all ways to run that fit the one that needs least memory; None where none fits."""
    found = (one for those in attempts(machine, model, dataset, request, extremes=True) for one in those if one.fits)
    return min(found, key=lambda candidate: candidate.memory.needed_bytes, default=None)
