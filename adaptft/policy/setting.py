"""What is settled before the search: the sequences, the size of a step, and the arrangements of GPUs to weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adaptft.facts import DatasetShape, Gpu, Machine, ModelShape
from adaptft.plans import Decision, Placement
from adaptft.policy import batching, schedules
from adaptft.policy.arrangements import CanShare, own_rows, shared_rows
from adaptft.policy.devices import host_free_bytes
from adaptft.requests import TrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One arrangement of devices, with the sequences that a step takes on it."""

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
        """Ranks, or groups of ranks, that see different rows."""
        return self.placement.value.data_parallel_size


def settle(machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest) -> tuple[Setting, ...]:
    """Every arrangement in which each GPU has rows of its own, most GPUs and plainest first.

    Raises:
        RequestError, MachineError: wishes that this machine or model cannot meet.
    """
    return _settings(machine, model, dataset, request, lambda can_share: own_rows(machine, request, can_share))


def settle_larger_steps(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest
) -> tuple[Setting, ...]:
    """The arrangements on more GPUs than a step of the usual size has rows for; none where the user sizes the step.

    Raises:
        RequestError, MachineError: as ``settle``.
    """
    if request.global_batch_size is not None:
        return ()
    usual = {one.placement.value.num_gpus for one in settle(machine, model, dataset, request)}
    larger = _settings(machine, model, dataset, request, lambda _: own_rows(machine, request, lambda ranks: True))
    return tuple(one for one in larger if one.placement.value.num_gpus > max(usual))


def settle_shared_rows(
    machine: Machine, model: ModelShape, dataset: DatasetShape, request: TrainRequest
) -> tuple[Setting, ...]:
    """The arrangements in which several GPUs share each row's tokens, fewest first; none where there is one GPU.

    Raises:
        RequestError, MachineError: as ``settle``.
    """
    return _settings(
        machine, model, dataset, request, lambda can_share: shared_rows(machine, model, request, can_share),
        packing=(False, "rows not packed, since GPUs share each of them"),
    )  # fmt: skip


def _settings(
    machine: Machine,
    model: ModelShape,
    dataset: DatasetShape,
    request: TrainRequest,
    arrange: Callable[[CanShare], tuple[Decision[Placement], ...]],
    *,
    packing: tuple[bool, str] | None = None,
) -> tuple[Setting, ...]:
    held_out = schedules.held_out_ratio(dataset, request)
    is_packed, packing_reason = packing or batching.choose_packing(request)
    max_length, length_reason = batching.choose_max_length(model, dataset, request)
    wanted = batching.wanted_sequences(dataset, held_out[0], max_length, is_packed, request)

    def setting(placement: Decision[Placement]) -> Setting:
        chosen = [gpu for gpu in machine.gpus if gpu.index in placement.value.gpu_indices]
        total, reason = batching.global_batch(wanted, placement.value.data_parallel_size, request)
        return Setting(
            machine=machine,
            model=model,
            dataset=dataset,
            request=request,
            placement=placement,
            gpu=chosen[0] if chosen else None,
            capacity_bytes=min((gpu.memory_free_bytes for gpu in chosen), default=host_free_bytes(machine)),
            packing=is_packed,
            max_length=max_length,
            global_batch_size=total,
            batch_reason=f"{reason}; {length_reason}; {packing_reason}",
            held_out=held_out,
        )

    return tuple(map(setting, arrange(lambda ranks: batching.can_share(ranks, wanted, request))))
