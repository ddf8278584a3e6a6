"""From facts and a request to a training plan: the fastest that fits, what was rejected, and the ways out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import CostEstimate, Decision, MemoryEstimate, Precision, Rejected, SpeedEstimate, TrainPlan
from adaptft.policy.gpus import PRICE_SOURCE, known_gpu
from adaptft.policy.memory import FREE_MARGIN
from adaptft.policy.methods import choose_train_types
from adaptft.policy.precision import fp8_obstacle, precision_candidates
from adaptft.policy.schedules import asks_for_evaluation
from adaptft.policy.search import SAME_SPEED, Candidate, Setting, candidates, fastest, layers_in_words, settle
from adaptft.policy.speed import training_flops
from adaptft.policy.wishes import check_float8_package, check_wishes, forbids_4_bit, has_bitsandbytes, wants_4_bit
from adaptft.requests import TrainRequest, TrainType
from adaptft.units import format_bytes

SHORTER_LENGTHS = (1024, 512, 256)
OLDEST_OF_CUDA_13 = (7, 5)
ASSUMED_CPU_FLOPS = 1e12
LONG_ON_CPU_FLOPS = 3600 * ASSUMED_CPU_FLOPS


def plan_training(machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest) -> TrainPlan:
    """The fastest plan that fits; where none fits, the leanest one with ``fits`` False and the ways out.

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
            return _plan(setting, chosen, tried + _slower(chosen, found) + _fp8_left_out(setting, chosen))
        closest = min(found, key=_need)
        tried.append(Rejected(closest.in_words, _too_much(closest.memory)))
        leanest = closest if leanest is None else min(closest, leanest, key=_need)
    assert leanest is not None, "there is always at least one precision and one optimizer"
    ways = list(_ways_out(setting, leanest))
    return replace(_plan(setting, leanest, tried + ways), fits=False, speed=None, cost=None)


def _need(candidate: Candidate) -> int:
    return candidate.memory.needed_bytes


def _attempts(setting: Setting) -> Iterator[list[Candidate]]:
    """All candidates of each precision and optimizer, best quality first; a later one is for less memory."""
    for train_type in choose_train_types(setting.request, setting.machine.software):
        for precision in _precisions(setting, train_type):
            for optimizer in _optimizers(setting, train_type, precision.value):
                yield list(candidates(setting, train_type, precision, optimizer))


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


def _plan(setting: Setting, chosen: Candidate, rejected: list[Rejected]) -> TrainPlan:
    return TrainPlan(
        machine=setting.machine,
        model=setting.model,
        dataset=setting.dataset,
        request=setting.request,
        decisions=chosen.decisions,
        memory=chosen.memory,
        speed=chosen.speed,
        cost=_cost(setting, chosen.speed),
        rejected=tuple(rejected),
        warnings=tuple(_warnings(setting, chosen)),
    )


def _slower(chosen: Candidate, found: list[Candidate]) -> list[Rejected]:
    """For each other micro-batch the best that it could do, and why that is not better."""
    by_size = {candidate.decisions.batch.value.micro_batch_size: candidate for candidate in found}
    by_size.pop(chosen.decisions.batch.value.micro_batch_size, None)
    return [Rejected(f"micro_batch_size {size}", _why_not(best, chosen)) for size, best in by_size.items()]


def _why_not(candidate: Candidate, chosen: Candidate) -> str:
    if not candidate.fits:
        return _too_much(candidate.memory)
    checkpointing = candidate.decisions.checkpointing.value
    slower = candidate.relative_time / chosen.relative_time
    if slower > SAME_SPEED:
        return f"{slower - 1:.0%} slower" + (
            f", {layers_in_words(checkpointing)} checkpointed" if checkpointing.layers else ""
        )
    more = candidate.memory.needed_bytes - chosen.memory.needed_bytes
    return f"no faster, and {format_bytes(more)} more memory"


def _fp8_left_out(setting: Setting, chosen: Candidate) -> list[Rejected]:
    """Why a run on a GPU does without FP8."""
    precision, method = chosen.decisions.precision.value, chosen.decisions.method.value
    if precision.compute == "fp8" or setting.gpu is None:
        return []
    obstacle = fp8_obstacle(setting.gpu, setting.model, method.train_type)
    return [Rejected("fp8", obstacle or f"{_FP8_UNPROVEN[method.train_type]}; --fp8 true takes it")]


_FP8_UNPROVEN: dict[TrainType, str] = {
    "lora": "its gain is not measured for this card and size",
    "qlora": "its gain is not measured for this card and size",
    "full": "its loss on real weights is not compared yet (it is a third faster on an H200)",
}


def _too_much(memory: MemoryEstimate) -> str:
    need, free = format_bytes(memory.needed_bytes), format_bytes(memory.capacity_bytes)
    lack = memory.needed_bytes - memory.capacity_bytes
    return f"needs {need} of {free} free: " + (
        f"{format_bytes(lack)} too much" if lack > 0 else f"less than {FREE_MARGIN:.0%} would stay free"
    )


def _ways_out(setting: Setting, leanest: Candidate) -> Iterator[Rejected]:
    """Leaner wishes that fit this machine, each with what it needs."""
    for words, request in _leaner_requests(setting, leanest.decisions.method.value.train_type):
        lean = settle(setting.machine, setting.model, setting.dataset, request)
        fitting = [candidate for found in _attempts(lean) for candidate in found if candidate.fits]
        if fitting:
            need = format_bytes(min(map(_need, fitting)))
            missing = wants_4_bit(request) and not has_bitsandbytes(setting.machine.software)
            install = ', after pip install "adaptft[qlora]"' if missing else ""
            yield Rejected(words, f"fits, needs {need}{install}", is_way_out=True)


def _leaner_requests(setting: Setting, train_type: TrainType) -> Iterator[tuple[str, TrainRequest]]:
    order: tuple[TrainType, ...] = ("full", "lora", "qlora")
    for leaner in order[order.index(train_type) + 1 :]:
        if leaner == "lora" or not forbids_4_bit(setting.request):
            yield f"--train_type {leaner}", replace(setting.request, train_type=leaner, fp8=None, optim=None)
    for length in SHORTER_LENGTHS:
        if length < setting.max_length:
            yield f"--max_length {length}", replace(setting.request, max_length=length)
    if setting.request.gradient_checkpointing is False:
        yield "--gradient_checkpointing true", replace(setting.request, gradient_checkpointing=True)


def _cost(setting: Setting, speed: SpeedEstimate | None) -> CostEstimate | None:
    row = known_gpu(setting.gpu) if setting.gpu else None
    if row is None or row.usd_per_hour is None or speed is None or (setting.gpu and setting.gpu.mig):
        return None  # the table knows no price of a MIG slice
    hours = speed.total_seconds / 3600 * setting.placement.value.num_gpus
    return CostEstimate(
        usd_per_gpu_hour=row.usd_per_hour, total_usd=hours * row.usd_per_hour, price_source=PRICE_SOURCE
    )


def _warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    method, dataset = chosen.decisions.method.value, setting.dataset
    if chosen.fits and method.train_type == "full" and chosen.decisions.precision.value.weights == "bf16":
        yield "Weights in bf16 lose small updates; lora, or memory for FP32 weights, is more exact."
    if dataset.assumed:
        tokens = f"{dataset.mean_row_tokens:.0f} tokens"
        yield f"The data was not measured: {dataset.num_rows} rows of {tokens} are assumed."
    yield from _device_warnings(setting, chosen)
    if asks_for_evaluation(setting.request) and not chosen.decisions.schedule.value.eval_steps:
        yield "Evaluation is asked for, and no rows are held out: name --val_dataset, or set --split_dataset_ratio."
    if method.lora_dropout and setting.gpu:
        yield "LoRA dropout keeps a copy of each layer's input, which is not in the memory estimate."


def _device_warnings(setting: Setting, chosen: Candidate) -> Iterator[str]:
    """What takes days on a CPU, and a torch that has no kernels for an old card."""
    software, gpu = setting.machine.software, setting.gpu
    if gpu is None:
        batch, steps = chosen.decisions.batch.value, chosen.decisions.schedule.value.max_steps
        tokens = batch.global_batch_size * batch.max_length * steps
        work = training_flops(setting.model, chosen.decisions.method.value.train_type) * tokens
        if work > LONG_ON_CPU_FLOPS and chosen.fits:
            hours = work / ASSUMED_CPU_FLOPS / 3600
            yield f"On a CPU this takes long: {hours:.0f} hours at 1 TFLOP/s, which few CPUs reach."
    elif (gpu.compute_capability or (0, 0)) < OLDEST_OF_CUDA_13 and (software.torch_cuda or "").startswith("13"):
        yield (
            f"torch for CUDA {software.torch_cuda} has no kernels for {gpu.name}: install a build for CUDA 12 that "
            "has sm_70 in torch.cuda.get_arch_list()."
        )
