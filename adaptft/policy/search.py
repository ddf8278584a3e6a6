"""The search space of a training plan: every way to cut the batch, and how many layers to checkpoint for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from adaptft.facts import DatasetShape, Gpu, Machine, ModelShape
from adaptft.plans import (
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
from adaptft.policy.placement import place
from adaptft.policy.speed import estimate_speed
from adaptft.policy.targets import Targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest, TrainType
from adaptft.units import format_bytes

SAME_SPEED = 1.03
"""Plans within 3 % of the fastest count as equally fast; the one that needs least memory is taken."""
ENOUGH_TOKENS = 8192
"""A micro-batch of so many tokens keeps any GPU busy; used where no speed is predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is settled before the search: the device, the sequences, and the size of a step."""

    machine: Machine
    model: ModelShape
    dataset: DatasetShape
    request: TrainRequest
    placement: Decision[Placement]
    gpu: Gpu | None
    capacity_bytes: int
    packing: bool
    max_length: int
    global_batch_size: int
    batch_reason: str
    held_out: tuple[float, str]

    @property
    def data_parallel_size(self) -> int:
        """Ranks that see different rows."""
        return self.placement.value.data_parallel_size


def settle(machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest) -> Setting:
    """Everything that does not depend on how much memory a step takes.

    Raises:
        RequestError, MachineError: wishes that this machine or model cannot meet.
    """
    held_out = schedules.held_out_ratio(dataset, request)
    packing, packing_reason = batching.choose_packing(request)
    max_length, length_reason = batching.choose_max_length(model, dataset, request)
    wanted = batching.wanted_sequences(dataset, held_out[0], max_length, packing, request)
    placement = place(machine, request, lambda ranks: batching.can_share(ranks, wanted, request))
    chosen = [gpu for gpu in machine.gpus if gpu.index in placement.value.gpu_indices]
    total, batch_reason = batching.global_batch(wanted, placement.value.data_parallel_size, request)
    return Setting(
        machine=machine,
        model=model,
        dataset=dataset,
        request=request,
        placement=placement,
        gpu=chosen[0] if chosen else None,
        capacity_bytes=min((gpu.memory_free_bytes for gpu in chosen), default=_host_free(machine)),
        packing=packing,
        max_length=max_length,
        global_batch_size=total,
        batch_reason=f"{batch_reason}; {length_reason}; {packing_reason}",
        held_out=held_out,
    )


def _host_free(machine: Machine) -> int:
    memory = machine.memory
    return min(memory.available_bytes, memory.limit_bytes or memory.available_bytes)


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

    decisions: Decisions
    memory: MemoryEstimate
    speed: SpeedEstimate | None

    @property
    def fits(self) -> bool:
        """True where its need stays below the free memory less a margin."""
        return fits(self.memory)

    @property
    def relative_time(self) -> float:
        """Seconds a step; without a speed model, recomputation and small micro-batches in proportion."""
        if self.speed:
            return self.speed.step_seconds
        checkpointing, batch = self.decisions.checkpointing.value, self.decisions.batch.value
        on_cpu = self.decisions.placement.value.strategy == "cpu"
        filled = 1.0 if on_cpu else min(batch.micro_batch_tokens, ENOUGH_TOKENS) / ENOUGH_TOKENS
        return (1 + checkpointing.layers / checkpointing.of / 3) * (1.1 - 0.1 * filled)

    @property
    def in_words(self) -> str:
        """``lora, bf16, adamw, micro_batch_size 2, 12 of 28 layers checkpointed``."""
        method, checkpointing = self.decisions.method.value, self.decisions.checkpointing.value
        return (
            f"{method.train_type}, {method.base_storage}, {self.decisions.optimizer.value.name}, micro_batch_size "
            f"{self.decisions.batch.value.micro_batch_size}, {layers_in_words(checkpointing)} checkpointed"
        )


def layers_in_words(checkpointing: Checkpointing) -> str:
    """``12 of 28 layers``, or every or no layer."""
    if checkpointing.layers in (0, checkpointing.of):
        return "every layer" if checkpointing.layers else "no layer"
    return f"{checkpointing.layers} of {checkpointing.of} layers"


def candidates(
    setting: Setting, train_type: TrainType, precision: Decision[Precision], optimizer: str, *, extremes: bool = False
) -> Iterator[Candidate]:
    """For each micro-batch the one with as few checkpointed layers as fit, smallest micro-batch first.

    Args:
        extremes: only the smallest and the largest micro-batch. If neither fits none does: activations grow with
            it, and gradients wait for a second micro-batch in all but the largest.
    """
    method, targets = choose_method(setting.model, setting.request, train_type, precision.value)
    cuts = list(
        batching.batches(
            setting.global_batch_size, setting.max_length, setting.packing, setting.data_parallel_size, setting.request
        )
    )
    for batch in dict.fromkeys((cuts[0], cuts[-1])) if extremes else cuts:

        def with_thrift(thrift: Thrift, batch: Batch = batch) -> Candidate:
            return _candidate(setting, precision, method, targets, optimizer, batch, thrift)

        yield _least_thrifty(with_thrift, setting)


def _least_thrifty(with_thrift: Callable[[Thrift], Candidate], setting: Setting) -> Candidate:
    """The first that fits of: all activations and both copies of FP8 weights; one copy and as few recomputing layers
    as fit; their inputs in host memory. The last of these where none does. Who asks for checkpointing wants thrift.

    A second copy is the first thing to go: transposing costs 1 % of a step (H200, 7B), recomputing one layer of 28 as
    much.
    """
    request, layers = setting.request, setting.model.num_layers
    forced, offload = request.gradient_checkpointing, bool(request.activation_offloading)
    fewest, most = (0, layers) if forced is None else (layers, layers) if forced else (0, 0)
    if not forced and (roomy := with_thrift(Thrift(transposed_copy=True))).fits:
        return roomy
    while fewest < most:
        middle = (fewest + most) // 2
        fits_so = with_thrift(Thrift(middle, offload=offload)).fits
        fewest, most = (fewest, middle) if fits_so else (middle + 1, most)
    lean = with_thrift(Thrift(fewest, offload=offload and fewest > 0))
    may_offload = request.activation_offloading is None and setting.gpu is not None and fewest == layers
    return lean if lean.fits or not may_offload else with_thrift(Thrift(fewest, offload=True))


def uncheckpointed(setting: Setting, chosen: Candidate) -> Candidate:
    """``chosen`` as it would be with the activations of every layer kept."""
    decided = chosen.decisions
    method, targets = choose_method(
        setting.model, setting.request, decided.method.value.train_type, decided.precision.value
    )
    optimizer, batch = decided.optimizer.value.name, decided.batch.value
    return _candidate(setting, decided.precision, method, targets, optimizer, batch, Thrift())


def fastest(fitting: list[Candidate]) -> Candidate:
    """The fastest, and of equally fast ones the leanest."""
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
        decisions=replace(decisions, checkpointing=checkpointing),
        memory=memory,
        speed=estimate_speed(work, setting.machine, setting.gpu, schedule.value.max_steps),
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
