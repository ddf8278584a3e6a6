"""Wishes that no machine can meet, or that contradict each other: refused before anything is decided.

The command line checks ranges too; a request made in Python comes here unchecked.
"""

from __future__ import annotations

from dataclasses import fields

from adaptft.errors import DataError, MissingPackage, RequestError
from adaptft.facts import DatasetShape, Software
from adaptft.plans import SHARDED
from adaptft.policy.placement import GPU_WISHES
from adaptft.requests import ADAPTER, TrainRequest

POSITIVE = (
    "max_steps", "num_train_epochs", "num_gpus", "nnodes", "sequence_parallel_size", "network_gbps", "lora_rank",
    "lora_alpha", "per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size",
    "per_device_eval_batch_size", "eval_steps", "save_steps", "logging_steps", "learning_rate",
)  # fmt: skip
PARTS = ("split_dataset_ratio", "warmup_ratio", "lora_dropout")
SHORTEST_LENGTH = 2
EIGHT_BIT_PACKAGE = "bitsandbytes"


def check_wishes(dataset: DatasetShape, request: TrainRequest, software: Software) -> None:
    """Refuse what cannot be meant.

    Raises:
        RequestError: a number out of its range, or two wishes of which only one can be met.
        DataError: no rows.
        MissingPackage: 4-bit weights or 8-bit states are asked for and bitsandbytes is not installed.
    """
    _check_numbers(request)
    check_pairs(request)
    if dataset.num_rows < 1:
        raise DataError("There are no rows to train on.", fix="Name a data set with --dataset.")
    for wanted, purpose in ((wants_4_bit(request), "qlora"), (wants_8_bit_states(request), f"optim {request.optim}")):
        if wanted and not has_bitsandbytes(software):
            raise MissingPackage(
                f"{purpose} needs the package {EIGHT_BIT_PACKAGE}, which is not installed.",
                fix='Install it: pip install "adaptft[qlora]"',
            )


def wants_4_bit(request: TrainRequest) -> bool:
    """True where a 4-bit base is asked for, in either spelling."""
    return request.train_type == "qlora" or request.quant_bits is not None


def forbids_4_bit(request: TrainRequest) -> bool:
    """True where the user said that the base is not quantised."""
    return request.quant_bits is None and "quant_bits" in request.given


def wants_8_bit_states(request: TrainRequest) -> bool:
    """True for the optimizers that bitsandbytes brings."""
    return request.optim is not None and request.optim.endswith("8bit")


def has_bitsandbytes(software: Software) -> bool:
    """True where the package that stores 4-bit weights and 8-bit states is installed."""
    return EIGHT_BIT_PACKAGE in software.packages


def _check_numbers(request: TrainRequest) -> None:
    for name in POSITIVE:
        number = getattr(request, name)
        if number is not None and number <= 0:
            raise RequestError(f"{name} {number:g} is out of range.", fix=f"{name} is above 0; or leave it out.")
    for name in PARTS:
        number = getattr(request, name)
        if number is not None and not 0 <= number < 1:
            raise RequestError(f"{name} {number:g} is out of range.", fix=f"{name} is at least 0 and below 1.")
    if request.max_length is not None and request.max_length < SHORTEST_LENGTH:
        raise RequestError(
            f"max_length {request.max_length} leaves nothing to learn: a sequence needs a token to predict from "
            "and one to predict.",
            fix=f"Use --max_length {SHORTEST_LENGTH} or more, or leave it out.",
        )


def check_pairs(request: TrainRequest) -> None:
    """Refuse wishes that contradict each other, whatever the machine and the data are.

    Raises:
        RequestError: two of them do.
    """
    if request.train_type == "full":
        useless = [f.name for f in fields(request) if f.metadata.get("group") == ADAPTER and _is_set(request, f.name)]
        if useless:
            raise RequestError(
                f"{', '.join(useless)}: for adapters, and train_type full has none.",
                fix="Leave it out, or use --train_type lora.",
            )
    if request.adapters is not None and request.resume_only_model:
        raise RequestError(
            "adapters and resume_only_model both name the weights to begin with.", fix="Leave one of them out."
        )
    if request.train_type == "qlora" and forbids_4_bit(request):
        raise RequestError(
            "train_type qlora stores the base in 4 bits, and quant_bits says not to.",
            fix="Use --train_type lora, or leave --quant_bits out.",
        )
    if request.activation_offloading and request.gradient_checkpointing is False:
        raise RequestError(
            "activation_offloading keeps the inputs of checkpointed layers, and gradient_checkpointing is off.",
            fix="Leave one of them out.",
        )
    if request.activation_offloading and request.device == "cpu":
        raise RequestError("activation_offloading is for GPUs.", fix="Leave it out, or leave --device cpu out.")
    for name in GPU_WISHES:
        if request.device == "cpu" and getattr(request, name):
            raise RequestError(
                f"device cpu and {name} {getattr(request, name)} contradict each other.", fix="Leave one of them out."
            )
    _check_shards(request)


def _check_shards(request: TrainRequest) -> None:
    """What shards of weights and states do not go with."""
    sharing = (request.sequence_parallel_size or 1) > 1
    if wants_8_bit_states(request) and (sharing or request.strategy in SHARDED):
        wish = f"strategy {request.strategy}" if request.strategy else "sequence_parallel_size"
        raise RequestError(
            f"optim {request.optim} and {wish} contradict each other: states in 8 bit cannot be sharded.",
            fix="Use --optim adamw, or --strategy ddp.",
        )
    if request.fp8 and wants_4_bit(request) and (sharing or request.strategy in SHARDED):
        raise RequestError(
            "fp8 and shards of 4-bit weights contradict each other: bitsandbytes unpacks those to 16 bit.",
            fix="Leave --fp8 out, or use --strategy ddp.",
        )


def _is_set(request: TrainRequest, name: str) -> bool:
    return getattr(request, name) not in (None, (), False, 0)
