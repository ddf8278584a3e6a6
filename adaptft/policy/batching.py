"""Sequence length, packing and batch: what a step sees does not depend on the GPU, how it is cut does."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from adaptft.errors import RequestError
from adaptft.facts import DatasetShape, ModelShape
from adaptft.plans import Batch
from adaptft.policy.schedules import EPOCHS, num_sequences
from adaptft.requests import TrainRequest

SHORTEST, LONGEST = 512, 2048
MOST_SEQUENCES = 16
FEWEST_STEPS = 100


def choose_max_length(model: ModelShape, dataset: DatasetShape, request: TrainRequest) -> tuple[int, str]:
    """The length asked for, or the power of two that holds the longest row, from 512 to 2048.

    Raises:
        RequestError: longer than the model's positions.
    """
    limit = model.max_position_embeddings
    if request.max_length:
        if request.max_length > limit:
            raise RequestError(
                f"max_length {request.max_length} is beyond the {limit} positions of {model.name}.",
                fix=f"Use --max_length {limit} or less.",
            )
        longer = _too_long(request.max_length, dataset, request)
        return request.max_length, f"{request.max_length} tokens, as asked for{longer}"
    if dataset.assumed:
        return min(LONGEST, limit), f"{min(LONGEST, limit)} tokens, the data not being measured"
    length = SHORTEST
    while length < min(dataset.longest_row_tokens, LONGEST):
        length *= 2
    length = min(length, limit)
    longer = _too_long(length, dataset, request)
    return length, f"{length} tokens{longer or f' hold the longest row ({dataset.longest_row_tokens})'}"


_SHORTENED = {"delete": "left out", "left": "cut on the left", "right": "cut on the right", "split": "split"}


def _too_long(length: int, dataset: DatasetShape, request: TrainRequest) -> str:
    if dataset.assumed or dataset.longest_row_tokens <= length:
        return ""
    return f"; longer rows (up to {dataset.longest_row_tokens}) are {_SHORTENED[request.truncation_strategy]}"


def choose_packing(request: TrainRequest) -> tuple[bool, str]:
    """Packed, unless the user says otherwise or gives a batch size: other frameworks count rows with it."""
    if request.packing is not None:
        return request.packing, "rows packed" if request.packing else "rows not packed, as asked for"
    sizes = (request.per_device_train_batch_size, request.gradient_accumulation_steps, request.global_batch_size)
    if any(sizes):
        return False, "rows not packed, since a batch size counts rows (--packing true: packs of them)"
    return True, "rows packed"


def wanted_sequences(dataset: DatasetShape, ratio: float, max_length: int, packing: bool, request: TrainRequest) -> int:
    """Sequences that an optimizer step should see on any machine: 16, or fewer where the data is small."""
    epochs = request.num_train_epochs if request.num_train_epochs is not None else EPOCHS
    sequences = num_sequences(dataset, ratio, max_length, packing) * max(epochs, 1)
    wanted = 1
    while wanted * 2 <= min(MOST_SEQUENCES, sequences / FEWEST_STEPS):
        wanted *= 2
    return wanted


def can_share(ranks: int, wanted: int, request: TrainRequest) -> bool:
    """True where each of ``ranks`` GPUs gets a share of a step that is as the user wants it, or holds ``wanted``."""
    micro, accumulation = request.per_device_train_batch_size, request.gradient_accumulation_steps
    if request.global_batch_size:
        unit = (micro or 1) * (accumulation or 1) * ranks
        return request.global_batch_size == unit if micro and accumulation else request.global_batch_size % unit == 0
    return bool(micro and accumulation) or ranks <= wanted


def global_batch(wanted: int, data_parallel: int, request: TrainRequest) -> tuple[int, str]:
    """Sequences of an optimizer step: as asked for, or ``wanted``, rounded up to what all GPUs take at a time."""
    micro, accumulation = request.per_device_train_batch_size, request.gradient_accumulation_steps
    if request.global_batch_size:
        return request.global_batch_size, f"{_sequences(request.global_batch_size)} a step, as asked for"
    if micro and accumulation:
        ranks = f" x {data_parallel} GPUs" if data_parallel > 1 else ""
        return micro * accumulation * data_parallel, f"{micro} x {accumulation}{ranks}, as asked for"
    unit = (micro or accumulation or 1) * data_parallel
    total = ceil(wanted / unit) * unit
    why = f"{_sequences(wanted)} a step on any GPU"
    if wanted < MOST_SEQUENCES:
        why = f"{_sequences(wanted)} a step: with more, this little data would not last {FEWEST_STEPS} steps"
    return total, why + (f"; {total}, so that it divides evenly" if total != wanted else "")


def _sequences(count: int) -> str:
    return f"{count} sequence{'s' * (count != 1)}"


def batches(total: int, max_length: int, packing: bool, data_parallel: int, request: TrainRequest) -> Iterator[Batch]:
    """Every way to cut ``total`` into micro-batches that the user allows, smallest micro-batch first.

    Raises:
        RequestError: none divides evenly.
    """
    micro, accumulation = request.per_device_train_batch_size, request.gradient_accumulation_steps
    if micro and accumulation:
        cuts = [(micro, accumulation)]  # Batch checks the product
    else:
        share = total // data_parallel
        cuts = [
            (m, share // m)
            for m in range(1, share + 1)
            if total % data_parallel == 0
            and share % m == 0
            and micro in (None, m)
            and accumulation in (None, share // m)
        ]
    if not cuts:
        factors = (("per_device_train_batch_size", micro), ("gradient_accumulation_steps", accumulation))
        given = [f"{name} {number}" for name, number in factors if number]
        given += [f"{data_parallel} GPUs"] if data_parallel > 1 else []
        raise RequestError(
            f"global_batch_size {total} cannot be divided by {' x '.join(given)}.",
            fix="Leave one of them out, or choose a global_batch_size that their product divides.",
        )
    for size, steps in cuts:
        yield Batch(
            micro_batch_size=size,
            gradient_accumulation_steps=steps,
            data_parallel_size=data_parallel,
            global_batch_size=total,
            eval_batch_size=request.per_device_eval_batch_size or size,
            max_length=max_length,
            packing=packing,
        )
