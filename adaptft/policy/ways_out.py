"""Where nothing fits: the nearest wishes and cards that would, each proved by planning it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from adaptft.errors import AdaptftError
from adaptft.facts import Machine
from adaptft.plans import Rejected
from adaptft.policy.assumed import machine_with
from adaptft.policy.gpus import GPU_MODELS, nominal_gb
from adaptft.policy.prices import PRICES
from adaptft.policy.search import Candidate, Setting, settle
from adaptft.policy.wishes import forbids_4_bit, has_bitsandbytes, wants_4_bit
from adaptft.requests import TrainRequest, TrainType
from adaptft.units import GiB, format_bytes

SHORTER_LENGTHS = (8192, 4096, 2048, 1024, 512, 256)

Need = Callable[[Setting], int | None]
"""Bytes that the leanest fitting plan of a setting needs; None where none fits."""


def ways_out(setting: Setting, leanest: Candidate, least_need: Need) -> Iterator[Rejected]:
    """Leaner wishes on this machine, then the smallest card on which the wish as it is fits."""
    for words, request in _leaner_requests(setting, leanest):
        need = _need_on(setting.machine, setting, request, least_need)
        if need is not None:
            missing = wants_4_bit(request) and not has_bitsandbytes(setting.machine.software)
            install = ', after pip install "adaptft[qlora]"' if missing else ""
            yield Rejected(words, f"needs {format_bytes(need)}{install}", is_way_out=True)
            if words.startswith("--max_length"):
                break  # a still shorter length would fit too, and is further off
    yield from _larger_card(setting, least_need)


def _need_on(machine: Machine, setting: Setting, request: TrainRequest, least_need: Need) -> int | None:
    """None where the wish does not fit ``machine``, or cannot be met there at all (a type it does not multiply)."""
    try:
        return least_need(settle(machine, setting.model, setting.dataset, request))
    except AdaptftError:
        return None


def _leaner_requests(setting: Setting, leanest: Candidate) -> Iterator[tuple[str, TrainRequest]]:
    """The nearest first; lengths come last, longest first."""
    request = setting.request
    order: tuple[TrainType, ...] = ("full", "lora", "qlora")
    if request.gradient_checkpointing is False:
        yield "--gradient_checkpointing true", replace(request, gradient_checkpointing=True)
    if (request.per_device_train_batch_size or 1) > 1:
        total = setting.global_batch_size
        single = replace(
            request, per_device_train_batch_size=1, gradient_accumulation_steps=None, global_batch_size=total
        )
        yield f"--per_device_train_batch_size 1 --global_batch_size {total}", single
    for leaner in order[order.index(leanest.decisions.method.value.train_type) + 1 :]:
        if leaner == "lora" or not forbids_4_bit(request):
            yield f"--train_type {leaner}", replace(request, train_type=leaner, fp8=None, optim=None)
    for length in SHORTER_LENGTHS:
        if length < setting.max_length:
            yield f"--max_length {length}", replace(request, max_length=length)


def _larger_card(setting: Setting, least_need: Need) -> Iterator[Rejected]:
    """The smallest card that can be rented and fits, as many of them as there are now."""
    if setting.request.device == "cpu":
        return
    count, least = max(1, setting.placement.value.num_gpus), setting.capacity_bytes if setting.gpu else 0
    cards = sorted((GPU_MODELS[key] for key in PRICES), key=lambda row: (nominal_gb(row), PRICES[row.key].usd_per_hour))
    for row in cards:
        if row.memory_gib * GiB <= least:
            continue
        need = _need_on(machine_with(row.key, count), setting, setting.request, least_need)
        if need is not None:
            words = f"--gpu {row.key}" + (f" --gpus {count}" if count > 1 else "")
            yield Rejected(words, f"needs {format_bytes(need)} of its {row.memory_gib:.1f} GiB", is_way_out=True)
            return
