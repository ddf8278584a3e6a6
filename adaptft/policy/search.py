"""The search space of a training plan: every way to cut the batch, and how many layers to checkpoint for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from adaptft.plans import (
    SHARDED,
    Batch,
    Checkpointing,
    Decision,
    Decisions,
    MemoryEstimate,
    Method,
    Placement,
    Precision,
    SpeedEstimate,
)
from adaptft.policy import batching, kernels, schedules
from adaptft.policy.memory import estimate_memory, fits
from adaptft.policy.methods import choose_method
from adaptft.policy.setting import Setting
from adaptft.policy.speed import estimate_speed
from adaptft.policy.targets import Targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainType
from adaptft.units import format_bytes

SAME_SPEED = 1.01
"""Plans within 1 % of the fastest count as equally fast; the one that needs least memory is taken."""
ALLOWANCES = ((frozenset({"cpu", "single", "ddp"}), 1.10), (frozenset({"fsdp2"}), 1.05))
"""Plainest first: whole replicas exchange least and go wrong least, and FSDP2 leaves more memory free than ZeRO-2; the
times of arrangements are not known better than this."""
ENOUGH_TOKENS = 8192
"""A micro-batch of so many tokens keeps any GPU busy; used where no speed is predicted."""
GATHERING = {"zero2": 1.1, "zero3": 1.2, "fsdp2": 1.2}
"""How much longer a step takes where weights are gathered; used there, too."""


@dataclass(frozen=True, slots=True)
class Thrift:
    """What a candidate does to save memory on the device, beyond the size of its micro-batch."""

    checkpointed: int = 0
    """Decoder layers that recompute."""
    transposed_copy: bool = False
    """FP8 weights a second time: the opposite of thrift, for 1 % of the time."""
    offload: bool = False
    """Inputs of checkpointed layers wait in host memory."""


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


def suits(placement: Placement, train_type: TrainType, optimizer: str, asked: str | None) -> bool:
    """Whether such a run can be spread so, and gains by it where nobody asked for it.

    States in 8 bit are updated by kernels that know nothing of shards (bitsandbytes' issues 89 and 1633), and gradients
    of adapters are too small to be worth gathering a frozen base for.
    """
    if placement.strategy not in SHARDED:
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
    as fit; their inputs in host memory. The last of these where none does. Who asks for checkpointing wants thrift.

    A second copy is the first thing to go: transposing costs 1 % of a step (H200, 7B), recomputing one layer of 28 as
    much. Gathered weights have no lasting copy at all.
    """
    request, layers = setting.request, setting.model.num_layers
    forced, offload = request.gradient_checkpointing, bool(request.activation_offloading)
    fewest, most = (0, layers) if forced is None else (layers, layers) if forced else (0, 0)
    whole = setting.placement.value.strategy not in SHARDED
    if not forced and (roomy := with_thrift(Thrift(transposed_copy=whole))).fits:
        return roomy
    while fewest < most:
        middle = (fewest + most) // 2
        fits_so = with_thrift(Thrift(middle, offload=offload)).fits
        fewest, most = (fewest, middle) if fits_so else (middle + 1, most)
    lean = with_thrift(Thrift(fewest, offload=offload and fewest > 0))
    may_offload = request.activation_offloading is None and setting.gpu is not None and fewest == layers
    return lean if lean.fits or not may_offload else with_thrift(Thrift(fewest, offload=True))


def uncheckpointed(chosen: Candidate) -> Candidate:
    """``chosen`` as it would be with the activations of every layer kept."""
    decided, setting = chosen.decisions, chosen.setting
    method, targets = choose_method(
        setting.model, setting.request, decided.method.value.train_type, decided.precision.value
    )
    optimizer, batch = decided.optimizer.value.name, decided.batch.value
    return _candidate(setting, decided.precision, method, targets, optimizer, batch, Thrift())


def fastest(fitting: list[Candidate]) -> Candidate:
    """The fastest, and of equally fast ones the leanest; a plainer arrangement may be a little slower."""
    best = min(candidate.relative_time for candidate in fitting)
    for strategies, allowance in ALLOWANCES:
        plain = [candidate for candidate in fitting if candidate.placement.strategy in strategies]
        if plain and min(candidate.relative_time for candidate in plain) <= best * allowance:
            return _leanest_of_the_fastest(plain)
    return _leanest_of_the_fastest(fitting)


def _leanest_of_the_fastest(fitting: list[Candidate]) -> Candidate:
    best = min(candidate.relative_time for candidate in fitting)
    equal = [candidate for candidate in fitting if candidate.relative_time <= best * SAME_SPEED]
    return min(equal, key=lambda candidate: candidate.memory.needed_bytes)


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
        attention=kernels.choose_attention(setting.gpu, model, precision.value, setting.packing, request),
        loss=kernels.choose_loss(model, adapts_head=targets is not None and targets.has_head),
        optimizer=schedules.choose_optimizer(method.value, optimizer, schedule.value.max_steps, request),
        schedule=schedule,
        compile=kernels.choose_compile(setting.gpu, model, setting.machine.software, request),
        adapters=kernels.choose_adapter_kernels(
            setting.gpu, method.value, precision.value, setting.machine.software, transposed_copy=thrift.transposed_copy
        ),
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
