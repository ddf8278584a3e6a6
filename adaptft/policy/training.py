"""From facts and a request to a training plan: the fastest that fits, what was rejected, and the ways out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import CostEstimate, Decision, Precision, Rejected, SpeedEstimate, TrainPlan
from adaptft.policy.assumed import is_assumed
from adaptft.policy.methods import choose_train_types
from adaptft.policy.precision import precision_candidates
from adaptft.policy.prices import PRICES, Prices, price_of
from adaptft.policy.rejections import need, not_taken, too_much
from adaptft.policy.schedules import asks_for_evaluation, num_sequences
from adaptft.policy.search import Candidate, Setting, candidates, fastest, settle
from adaptft.policy.speed import training_flops
from adaptft.policy.ways_out import ways_out
from adaptft.policy.wishes import check_float8_package, check_wishes, has_bitsandbytes
from adaptft.requests import TrainRequest, TrainType

TIGHT_SHARE = 0.9
"""More than this of a device that nobody looked at, or that others use, is warned of."""
OLDEST_OF_CUDA_13 = (7, 5)
ASSUMED_CPU_FLOPS = 1e12
LONG_ON_CPU_FLOPS = 3600 * ASSUMED_CPU_FLOPS


def plan_training(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest, prices: Prices = PRICES
) -> TrainPlan:
    """The fastest plan that fits; where none fits, the leanest one with ``fits`` False and the ways out.

    ``prices`` are of GPUs by their key in the table; without one the plan has no cost.

    Raises:
        RequestError: wishes that contradict each other or this hardware.
        MachineError: a GPU is asked for and none can be used.
        MissingPackage: bitsandbytes is needed and not on ``machine``.
        DataError: no rows.
    """
    check_wishes(dataset, request, machine.software)
    setting = settle(machine, model, dataset, request)
    tried: list[Rejected] = []
    leanest: Candidate | None = None
    for found in _attempts(setting):
        fitting = [candidate for candidate in found if candidate.fits]
        if fitting:
            chosen = fastest(fitting)
            return _plan(setting, chosen, tried + not_taken(setting, chosen, found), prices)
        closest = min(found, key=need)
        tried.append(Rejected(closest.in_words, too_much(closest.memory)))
        leanest = closest if leanest is None else min(closest, leanest, key=need)
    assert leanest is not None, "there is always at least one precision and one optimizer"
    ways = list(ways_out(setting, leanest, least_need))
    return replace(_plan(setting, leanest, tried + ways, prices), fits=False, speed=None, cost=None)


def least_need(setting: Setting) -> int | None:
    """Bytes that the leanest way to run needs free, of those that fit; None where none fits."""
    fitting = [candidate for found in _attempts(setting, extremes=True) for candidate in found if candidate.fits]
    return min(map(need, fitting), default=None)


def _attempts(setting: Setting, *, extremes: bool = False) -> Iterator[list[Candidate]]:
    """All candidates of each precision and optimizer, best quality first; a later one is for less memory."""
    for train_type in choose_train_types(setting.request, setting.machine.software):
        for precision in _precisions(setting, train_type):
            for optimizer in _optimizers(setting, train_type, precision.value):
                yield list(candidates(setting, train_type, precision, optimizer, extremes=extremes))


def _precisions(setting: Setting, train_type: TrainType) -> tuple[Decision[Precision], ...]:
    found = precision_candidates(setting.gpu, setting.machine.cpu, setting.model, setting.request, train_type)
    if train_type == "full" and any(precision.value.compute == "fp8" for precision in found):
        check_float8_package(setting.machine.software)
    return found


def _optimizers(setting: Setting, train_type: TrainType, precision: Precision) -> tuple[str, ...]:
    """AdamW; for whole models on the GPU 8-bit states as well, where bitsandbytes is there.

    FP32 weights with 8-bit states come before bf16 weights: the states lose less than the weights would.
    """
    if setting.request.optim:
        return (setting.request.optim,)
    lean = train_type == "full" and setting.gpu is not None and precision.compute != "fp32"
    return ("adamw", "adamw_8bit") if lean and has_bitsandbytes(setting.machine.software) else ("adamw",)


def _plan(setting: Setting, chosen: Candidate, rejected: list[Rejected], prices: Prices) -> TrainPlan:
    return TrainPlan(
        machine=setting.machine,
        model=setting.model,
        dataset=setting.dataset,
        request=setting.request,
        decisions=chosen.decisions,
        memory=chosen.memory,
        speed=chosen.speed,
        cost=_cost(setting, chosen.speed, prices),
        rejected=tuple(rejected),
        warnings=tuple(_warnings(setting, chosen)),
    )


def _cost(setting: Setting, speed: SpeedEstimate | None, prices: Prices) -> CostEstimate | None:
    price = price_of(setting.gpu, prices) if setting.gpu else None
    if price is None or speed is None:
        return None
    paid = len(setting.machine.gpus) if _pays_for_all(setting) else setting.placement.value.num_gpus
    hours = speed.total_seconds / 3600 * paid
    return CostEstimate(
        usd_per_gpu_hour=price.usd_per_hour, total_usd=hours * price.usd_per_hour, price_source=price.in_words
    )


def _pays_for_all(setting: Setting) -> bool:
    """GPUs that were named to ``plan`` are rented, used or not; on a machine that is there others may be somebody's."""
    return is_assumed(setting.machine) and setting.request.num_gpus is None


def _warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    method, dataset = chosen.decisions.method.value, setting.dataset
    if chosen.fits and method.train_type == "full" and chosen.decisions.precision.value.weights == "bf16":
        yield "Weights in bf16 lose small updates; lora, or memory for FP32 weights, is more exact."
    if dataset.assumed:
        tokens = f"{dataset.mean_row_tokens:.0f} tokens"
        yield f"The data was not measured: {dataset.num_rows} rows of {tokens} are assumed."
    yield from _device_warnings(setting, chosen)
    yield from _room_warnings(setting, chosen)
    yield from _small_data_warnings(setting, chosen)
    if asks_for_evaluation(setting.request) and not chosen.decisions.schedule.value.eval_steps:
        yield "Evaluation is asked for, and no rows are held out: name --val_dataset, or set --split_dataset_ratio."
    if method.lora_dropout and setting.gpu:
        yield "LoRA dropout keeps a copy of each layer's input, which is not in the memory estimate."


def _room_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """GPUs that stay idle, and memory that is planned for to the last gigabyte."""
    there, used = len(setting.machine.gpus), setting.placement.value.num_gpus
    wanted = setting.global_batch_size
    if 0 < used < there and _pays_for_all(setting):
        yield (
            f"{used} of the {there} GPUs {'is' if used == 1 else 'are'} used: a step of {wanted} "
            f"sequence{'s' * (wanted != 1)} does not divide among more. The cost is that of all {there}."
        )
    share = chosen.memory.needed_bytes / max(chosen.memory.capacity_bytes, 1)
    if chosen.fits and share > TIGHT_SHARE and (setting.gpu is None or is_assumed(setting.machine)):
        where = "the host, which other programs share" if setting.gpu is None else "a GPU that is taken to be idle"
        layers = chosen.decisions.checkpointing.value
        leaner = "--gradient_checkpointing true" if layers.layers < layers.of else "a shorter --max_length"
        yield f"Tight: {share:.0%} of the memory of {where}; {leaner} leaves more room."


def _small_data_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """Data that does not fill a single step."""
    batch = chosen.decisions.batch.value
    sequences = num_sequences(setting.dataset, setting.held_out[0], batch.max_length, batch.packing)
    if sequences < batch.global_batch_size:
        yield (
            f"The data has {sequences} sequence{'s' * (sequences != 1)}, and a step takes {batch.global_batch_size}: "
            "every step is all of it. A smaller --global_batch_size makes more steps of it."
        )


def _device_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """What takes days on a CPU, and a torch that has no kernels for an old card."""
    software, gpu = setting.machine.software, setting.gpu
    if gpu is None:
        batch, steps = chosen.decisions.batch.value, chosen.decisions.schedule.value.max_steps
        row_tokens = batch.max_length if batch.packing else min(batch.max_length, setting.dataset.mean_row_tokens)
        tokens = batch.global_batch_size * row_tokens * steps
        work = training_flops(setting.model, chosen.decisions.method.value.train_type) * tokens
        if work > LONG_ON_CPU_FLOPS and chosen.fits:
            hours = work / ASSUMED_CPU_FLOPS / 3600
            yield f"On a CPU this takes long: {hours:.0f} hours at 1 TFLOP/s, which few CPUs reach."
    elif (gpu.compute_capability or (0, 0)) < OLDEST_OF_CUDA_13 and (software.torch_cuda or "").startswith("13"):
        yield (
            f"torch for CUDA {software.torch_cuda} has no kernels for {gpu.name}: install a build for CUDA 12 that "
            "has sm_70 in torch.cuda.get_arch_list()."
        )
