"""The search space of a training plan: every way to cut the batch, and how many layers to checkpoint for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from adaptft.errors import RequestError
from adaptft.plans import (
    Batch,
    Checkpointing,
    Decision,
    Decisions,
    Method,
    Placement,
    Precision,
)
from adaptft.policy import batching, kernels, schedules
from adaptft.policy.candidate import Candidate
from adaptft.policy.memory import estimate_memory, fits
from adaptft.policy.methods import choose_method
from adaptft.policy.setting import Setting
from adaptft.policy.speed import estimate_speed
from adaptft.policy.storage import fits_on_host
from adaptft.policy.targets import Targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainType
from adaptft.units import format_bytes


@dataclass(frozen=True, slots=True)
class Thrift:
    """What a candidate does to save memory on the device, beyond the size of its micro-batch."""

    checkpointed: int = 0
    """Decoder layers that recompute."""
    fp8_copies: bool = False
    """FP8 weights a second time, and the head: the opposite of thrift, for some per cent of the time."""
    offload: bool = False
    """Inputs of checkpointed layers wait in host memory."""
    tiled_mlp: bool = False
    """MLPs take some tokens at a time."""


def suits(placement: Placement, train_type: TrainType, optimizer: str, asked: str | None) -> bool:
    """Whether such a run can be spread so, and gains by it where nobody asked for it.

    States in 8 bit are updated by kernels that know nothing of shards (bitsandbytes' issues 89 and 1633), and gradients
    of adapters are too small to be worth gathering a frozen base for. Nor do sharded 4-bit weights multiply in FP8.
    """
    if not placement.is_sharded:
        return True
    return optimizer == "adamw" and (placement.strategy != "zero2" or train_type == "full" or asked == "zero2")


def candidates(
    setting: Setting, train_type: TrainType, precision: Decision[Precision], optimizer: str, *, extremes: bool = False
) -> Iterator[Candidate]:
    """For each micro-batch the one with as few checkpointed layers as fit, smallest micro-batch first.

    If neither the smallest nor the largest micro-batch fits none does: activations grow with it, and gradients wait for
    a second micro-batch in all but the largest. Then these two are all there is.

    Args:
        extremes: only the smallest and the largest micro-batch.
    """
    method, targets = choose_method(setting.model, setting.request, train_type, precision.value)
    cuts = list(
        batching.batches(
            setting.global_batch_size, setting.max_length, setting.packing, setting.data_parallel_size, setting.request
        )
    )

    def best(batch: Batch) -> Candidate:
        return _least_thrifty(
            lambda thrift: _candidate(setting, precision, method, targets, optimizer, batch, thrift), setting
        )

    ends = {batch: best(batch) for batch in dict.fromkeys((cuts[0], cuts[-1]))}
    worth_it = not extremes and any(candidate.fits for candidate in ends.values())
    for batch in cuts if worth_it else ends:
        yield ends.get(batch) or best(batch)


def _least_thrifty(with_thrift: Callable[[Thrift], Candidate], setting: Setting) -> Candidate:
    """The first that fits of: all activations and both copies of FP8 weights; one copy and as few recomputing layers
    as fit; their inputs in host memory; MLPs in tiles. The last of these where none does. Who asks for checkpointing
    wants thrift.

    A second copy is the first thing to go: transposing costs 1 % of a step (H200, 7B), recomputing one layer of 28 as
    much. Gathered weights have no lasting copy at all.
    """
    request, layers = setting.request, setting.model.num_layers
    forced, offload = request.gradient_checkpointing, bool(request.activation_offloading)
    fewest, most = (0, layers) if forced is None else (layers, layers) if forced else (0, 0)
    whole, tiled = not setting.placement.value.is_sharded, bool(request.tiled_mlp)
    if not forced and (roomy := with_thrift(Thrift(fp8_copies=whole, tiled_mlp=tiled))).fits:
        return roomy
    while fewest < most:
        middle = (fewest + most) // 2
        fits_so = with_thrift(Thrift(middle, offload=offload, tiled_mlp=tiled)).fits
        fewest, most = (fewest, middle) if fits_so else (middle + 1, most)
    lean = with_thrift(Thrift(fewest, offload=offload and fewest > 0, tiled_mlp=tiled))
    if lean.fits or setting.gpu is None or fewest < layers:
        return lean
    offload = request.activation_offloading is not False
    offloaded = with_thrift(Thrift(fewest, offload=offload, tiled_mlp=tiled))
    may_tile = request.tiled_mlp is None and whole
    return offloaded if offloaded.fits or not may_tile else with_thrift(Thrift(fewest, offload=offload, tiled_mlp=True))


def uncheckpointed(chosen: Candidate) -> Candidate:
    """``chosen`` as it would be with the activations of every layer kept."""
    decided, setting = chosen.decisions, chosen.setting
    method, targets = choose_method(
        setting.model, setting.request, decided.method.value.train_type, decided.precision.value
    )
    optimizer, batch = decided.optimizer.value.name, decided.batch.value
    return _candidate(setting, decided.precision, method, targets, optimizer, batch, Thrift())


def _candidate(
    setting: Setting,
    precision: Decision[Precision],
    method: Decision[Method],
    targets: Targets | None,
    optimizer: str,
    batch: Batch,
    thrift: Thrift,
) -> Candidate:
    request, model = setting.request, setting.model
    schedule = schedules.choose_schedule(setting.dataset, batch, *setting.held_out, request)
    decisions = Decisions(
        precision=precision,
        method=method,
        placement=setting.placement,
        batch=_batch_decision(setting, batch),
        checkpointing=_checkpointing_decision(setting, thrift, fitting=True),
        attention=kernels.choose_attention(
            setting.gpu,
            model,
            precision.value,
            setting.packing,
            request,
            shares_rows=setting.placement.value.shares_rows,
        ),
        loss=kernels.choose_loss(model, adapts_head=targets is not None and targets.has_head),
        optimizer=schedules.choose_optimizer(method.value, optimizer, schedule.value.max_steps, request),
        schedule=schedule,
        compile=kernels.choose_compile(setting.gpu, model, setting.machine.software, request),
        adapters=kernels.choose_adapter_kernels(
            setting.gpu,
            method.value,
            precision.value,
            setting.machine.software,
            transposed_copy=thrift.fp8_copies,
            tiled_mlp=thrift.tiled_mlp,
            is_sharded=setting.placement.value.is_sharded,
            by_layer=fits_on_host(model, precision.value, setting.placement.value, setting.machine),
        ),
    )
    if request.tiled_mlp and not decisions.adapters.value.fused:
        raise RequestError(
            f"tiled_mlp cannot be had: {decisions.adapters.reason}.", fix="Leave it out: only fused adapters have it."
        )
    work = Workload(model=model, decisions=decisions, targets=targets, dataset=setting.dataset)
    memory = estimate_memory(work, setting.capacity_bytes, on_gpu=setting.gpu is not None)
    checkpointing = _checkpointing_decision(setting, thrift, fitting=fits(memory))
    return Candidate(
        setting=setting,
        decisions=replace(decisions, checkpointing=checkpointing),
        memory=memory,
        speed=estimate_speed(work, setting.machine, setting.gpu, schedule.value.max_steps, request.network_gbps),
    )


def _batch_decision(setting: Setting, batch: Batch) -> Decision[Batch]:
    request = setting.request
    asked = (
        request.per_device_train_batch_size, request.global_batch_size, request.gradient_accumulation_steps,
        request.packing, request.max_length,
    )  # fmt: skip
    return Decision(batch, setting.batch_reason, "policy" if all(wish is None for wish in asked) else "user")


def _checkpointing_decision(setting: Setting, thrift: Thrift, *, fitting: bool) -> Decision[Checkpointing]:
    layers = thrift.checkpointed
    value = Checkpointing(layers=layers, of=setting.model.num_layers, offload=thrift.offload)
    if setting.request.gradient_checkpointing is not None or setting.request.activation_offloading:
        return Decision(value, "asked for", "user")
    free = format_bytes(setting.capacity_bytes)
    if not fitting:
        return Decision(value, f"even so, {free} free are too little")
    if layers == 0:
        return Decision(value, f"all activations fit into {free} free")
    aside = "; their inputs wait in host memory" if thrift.offload else ""
    return Decision(value, f"as few layers as {free} free allow; each runs its forward pass twice{aside}")
