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

Wish = tuple[str, TrainRequest]
"""A request and what makes it so, in words."""
Need = Callable[[Setting], int | None]
"""Bytes that the leanest fitting plan of a setting needs; None where none fits."""


def ways_out(setting: Setting, leanest: Candidate, least_need: Need) -> Iterator[Rejected]:
    """Leaner wishes on this machine, then the smallest card on which the wish as it is fits."""
    for kind in _leaner_requests(setting, leanest):
        for words, request in kind:
            need = _need_on(setting.machine, setting, request, least_need)
            if need is not None:
                missing = wants_4_bit(request) and not has_bitsandbytes(setting.machine.software)
                install = ', after pip install "adaptft[qlora]"' if missing else ""
                yield Rejected(words, f"needs {format_bytes(need)}{install}", is_way_out=True)
                break  # the next of the same kind would fit too, and is further off
    yield from _larger_card(setting, least_need)


def _need_on(machine: Machine, setting: Setting, request: TrainRequest, least_need: Need) -> int | None:
    """None where the wish does not fit ``machine``, or cannot be met there at all (a type it does not multiply)."""
    try:
        return least_need(settle(machine, setting.model, setting.dataset, request))
    except AdaptftError:
        return None


def _leaner_requests(setting: Setting, leanest: Candidate) -> Iterator[Iterator[Wish]]:
    """Kinds of leaner wishes, the nearest kind first; in each the nearest first."""
    request = setting.request
    order: tuple[TrainType, ...] = ("full", "lora", "qlora")
    if request.gradient_checkpointing is False:
        yield iter([("--gradient_checkpointing true", replace(request, gradient_checkpointing=True))])
    yield _smaller_batches(setting)
    for leaner in order[order.index(leanest.decisions.method.value.train_type) + 1 :]:
        if leaner == "lora" or not forbids_4_bit(request):
            yield iter([(f"--train_type {leaner}", replace(request, train_type=leaner, fp8=None, optim=None))])
    shorter = (length for length in SHORTER_LENGTHS if length < setting.max_length)
    yield ((f"--max_length {length}", replace(request, max_length=length)) for length in shorter)


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
