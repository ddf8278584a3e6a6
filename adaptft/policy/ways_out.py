"""Where nothing fits: the nearest wishes and cards that would, each proved by planning it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from adaptft.errors import AdaptftError
from adaptft.facts import Machine
from adaptft.plans import Rejected
from adaptft.policy.assumed import machine_with
from adaptft.policy.attempts import leanest_fitting
from adaptft.policy.candidate import Candidate, spread_in_words
from adaptft.policy.gpu_table import GpuModel
from adaptft.policy.gpus import GPU_MODELS, known_gpu, nominal_gb
from adaptft.policy.prices import PRICES
from adaptft.policy.rejections import need
from adaptft.policy.setting import Setting
from adaptft.policy.wishes import forbids_4_bit, has_bitsandbytes, wants_4_bit
from adaptft.requests import TrainRequest, TrainType
from adaptft.units import GiB, format_bytes

SHORTER_LENGTHS = (8192, 4096, 2048, 1024, 512, 256)

MORE_CARDS = (2, 4, 8)
MORE_MACHINES = (2, 4, 8, 16)

Wish = tuple[str, TrainRequest]
"""A request and what makes it so, in words."""


def ways_out(leanest: Candidate) -> Iterator[Rejected]:
    """Leaner wishes on this machine; then the smallest card, the fewest cards and machines for the wish as it is."""
    setting = leanest.setting
    for kind in _leaner_requests(setting, leanest):
        for words, request in kind:
            found = _on(setting.machine, setting, request)
            if found is not None:
                missing = wants_4_bit(request) and not has_bitsandbytes(setting.machine.software)
                install = ', after pip install "adaptft[qlora]"' if missing else ""
                yield Rejected(words, f"needs {format_bytes(need(found))}{install}", is_way_out=True)
                break  # the next of the same kind would fit too, and is further off
    yield from _larger_card(setting)
    yield from _more_cards(setting)
    yield from _more_machines(setting)


def _on(machine: Machine, setting: Setting, request: TrainRequest) -> Candidate | None:
    """None where the wish does not fit ``machine``, or cannot be met there at all (a type it does not multiply)."""
    try:
        return leanest_fitting(machine, setting.model, setting.dataset, request)
    except AdaptftError:
        return None


def _leaner_requests(setting: Setting, leanest: Candidate) -> Iterator[Iterator[Wish]]:
    """Kinds of leaner wishes, the nearest kind first; in each the nearest first."""
    request = setting.request
    order: tuple[TrainType, ...] = ("full", "lora", "qlora")
    if request.gradient_checkpointing is False:
        yield iter([("--gradient_checkpointing true", replace(request, gradient_checkpointing=True))])
    if request.tiled_mlp is False:
        yield iter([("--tiled_mlp true", replace(request, tiled_mlp=True))])
    if request.strategy in ("ddp", "zero2"):
        yield iter([("--strategy fsdp2", replace(request, strategy="fsdp2", optim=None))])
    yield _more_of_the_gpus(setting)
    yield _smaller_batches(setting)
    for leaner in order[order.index(leanest.decisions.method.value.train_type) + 1 :]:
        if leaner == "lora" or not forbids_4_bit(request):
            yield iter([(f"--train_type {leaner}", replace(request, train_type=leaner, fp8=None, optim=None))])
    shorter = (length for length in SHORTER_LENGTHS if length < setting.max_length)
    yield ((f"--max_length {length}", replace(request, max_length=length)) for length in shorter)


def _more_of_the_gpus(setting: Setting) -> Iterator[Wish]:
    """More GPUs of this machine than the user named, fewest first."""
    named = setting.request.num_gpus
    for count in range(named + 1, len(setting.machine.gpus) + 1) if named else ():
        yield f"--num_gpus {count}", replace(setting.request, num_gpus=count)


def _smaller_batches(setting: Setting) -> Iterator[Wish]:
    """The same step in smaller micro-batches than the user named, largest first."""
    total, size = setting.global_batch_size, setting.request.per_device_train_batch_size or 1
    share = total // max(setting.data_parallel_size, 1)
    for smaller in (number for number in range(size - 1, 0, -1) if share % number == 0):
        words = f"--per_device_train_batch_size {smaller} --global_batch_size {total}"
        yield (
            words,
            replace(
                setting.request,
                per_device_train_batch_size=smaller,
                gradient_accumulation_steps=None,
                global_batch_size=total,
            ),
        )


def _larger_card(setting: Setting) -> Iterator[Rejected]:
    """The smallest card that can be rented and fits, as many of them as there are now."""
    if setting.request.device == "cpu":
        return
    count, least = max(1, len(setting.placement.value.gpu_indices)), setting.capacity_bytes if setting.gpu else 0
    cards = sorted((GPU_MODELS[key] for key in PRICES), key=lambda row: (nominal_gb(row), PRICES[row.key].usd_per_hour))
    for row in cards:
        if row.memory_gib * GiB > least and (found := _on(machine_with(row.key, count), setting, setting.request)):
            yield _cards(row, count, found)
            return


def _more_cards(setting: Setting) -> Iterator[Rejected]:
    """The fewest cards of the same model that fit together."""
    row = known_gpu(setting.gpu) if setting.gpu and not setting.gpu.mig else None
    if row is None or setting.request.num_gpus is not None:
        return
    for count in (count for count in MORE_CARDS if count > len(setting.machine.gpus)):
        if found := _on(machine_with(row.key, count), setting, setting.request):
            yield _cards(row, count, found)
            return


def _more_machines(setting: Setting) -> Iterator[Rejected]:
    """The fewest machines like this one that fit together, where it has as many GPUs as a machine has."""
    request = setting.request
    if len(setting.machine.gpus) < MORE_CARDS[-1] or (setting.gpu and setting.gpu.mig):
        return
    for nodes in (nodes for nodes in MORE_MACHINES if nodes > (request.nnodes or 1)):
        if found := _on(setting.machine, setting, replace(request, nnodes=nodes)):
            reason = f"needs {format_bytes(need(found))} on each GPU, {spread_in_words(found.placement)}"
            yield Rejected(f"--nnodes {nodes}", reason, is_way_out=True)
            return


def _cards(row: GpuModel, count: int, found: Candidate) -> Rejected:
    words = f"--gpu {row.key}" + (f" --gpus {count}" if count > 1 else "")
    spread = f", {spread_in_words(found.placement)}" if found.placement.num_gpus > 1 else ""
    return Rejected(
        words, f"needs {format_bytes(need(found))} of its {row.memory_gib:.1f} GiB{spread}", is_way_out=True
    )
