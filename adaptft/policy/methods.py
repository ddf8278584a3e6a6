"""What is trained, and how the frozen rest is stored."""

from __future__ import annotations

from typing import Literal

from adaptft.errors import RequestError
from adaptft.facts import ModelShape, Software
from adaptft.plans import Decision, Method, Precision
from adaptft.policy.targets import Targets, kept_in_16_bit, resolve_targets
from adaptft.policy.wishes import forbids_4_bit, has_bitsandbytes
from adaptft.requests import TrainRequest, TrainType

DEFAULT_RANK = 8
DEFAULT_ALPHA_PER_RANK = 2.0


def choose_train_types(request: TrainRequest, software: Software) -> tuple[TrainType, ...]:
    """What the user named; ``quant_bits 4`` with lora is qlora; where nothing is said lora, and qlora for less memory.

    Raises:
        RequestError: ``full`` together with a quantised base.
    """
    if request.quant_bits and request.train_type == "full":
        raise RequestError(
            "A 4-bit base cannot be trained whole.", fix="Use --train_type qlora, or leave --quant_bits out."
        )
    if request.quant_bits:
        return ("qlora",)
    if request.train_type:
        return (request.train_type,)
    lean = has_bitsandbytes(software) and not forbids_4_bit(request) and not request.fp8
    return ("lora", "qlora") if lean else ("lora",)


def choose_method(
    model: ModelShape, request: TrainRequest, train_type: TrainType, precision: Precision
) -> tuple[Decision[Method], Targets | None]:
    """Adapters and base storage; the resolved adapter targets come along for the memory model.

    Raises:
        RequestError: targets that do not exist, or a model that is quantised already.
    """
    if model.quantization:
        raise RequestError(
            f"{model.name} is quantised already ({model.quantization}); training needs 16-bit weights.",
            fix="Name the model it was made from, and use --train_type qlora for a 4-bit base.",
        )
    if train_type == "full":
        return _full(model, precision), None
    targets = resolve_targets(model, request.target_modules, request.modules_to_save)
    rank = request.lora_rank or DEFAULT_RANK
    method = Method(
        train_type=train_type,
        base_storage=_storage(train_type, precision),
        double_quant=train_type == "qlora" and request.bnb_4bit_use_double_quant,
        lora_rank=rank,
        lora_alpha=request.lora_alpha if request.lora_alpha is not None else DEFAULT_ALPHA_PER_RANK * rank,
        lora_dropout=request.lora_dropout or 0.0,
        target_modules=targets.names,
        target_regex=targets.regex,
        modules_to_save=request.modules_to_save,
        use_rslora=request.use_rslora,
        use_dora=request.use_dora,
        skipped_modules=kept_in_16_bit(model),
    )
    asked = request.train_type or request.quant_bits
    reason = "" if asked or train_type == "lora" else "a 16-bit base does not fit; "
    reason += f"{_storage_reason(method, precision)}; rank {rank} on {targets.num_modules} linear layers"
    reason += "".join(f"; {note}" for note in targets.notes)
    reason += f"; begins with the adapter in {request.adapters}" if request.adapters else ""
    return Decision(method, reason, "user" if asked or request.lora_rank else "policy"), targets


def _full(model: ModelShape, precision: Precision) -> Decision[Method]:
    skipped = kept_in_16_bit(model) if precision.compute == "fp8" else ()
    method = Method(train_type="full", base_storage=precision.weights, skipped_modules=skipped)
    return Decision(method, f"every weight is trained, in {precision.weights}", "user")


def _storage(train_type: TrainType, precision: Precision) -> Literal["fp32", "fp16", "bf16", "nf4", "fp8"]:
    if train_type == "qlora":
        return "nf4"
    return "fp8" if precision.compute == "fp8" else precision.weights


def _storage_reason(method: Method, precision: Precision) -> str:
    if method.base_storage == "nf4" and precision.compute == "fp8":
        return "the base in 4 bits (NF4), unpacked to FP8 for each matmul; embeddings and head stay in 16 bit"
    return _STORAGE_REASONS[method.base_storage]


_STORAGE_REASONS = {
    "nf4": "the base in 4 bits (NF4), dequantised for each matmul; embeddings and head stay in 16 bit",
    "fp8": "the base in FP8",
    "bf16": "the base in bf16",
    "fp16": "the base in FP16",
    "fp32": "the base in FP32",
}
