"""Precision, which is four things: the type of the weights, of the arithmetic, TF32, and loss scaling."""

from __future__ import annotations

from typing import Literal

from adaptft.errors import RequestError
from adaptft.facts import Cpu, Gpu, ModelShape
from adaptft.plans import FP8_ALIGNMENT, SHORT_DTYPES, Decision, Dtype, Precision, Source
from adaptft.policy.architectures import Capabilities, capabilities
from adaptft.requests import TrainRequest, TrainType

FP8_HIDDEN_SIZE = 2048
"""Below this width quantising costs more than the faster matmul gains (measured on an H200)."""


def precision_candidates(
    gpu: Gpu | None, cpu: Cpu, model: ModelShape, request: TrainRequest, train_type: TrainType
) -> tuple[Decision[Precision], ...]:
    """The precisions to try on ``gpu`` (the CPU where it is None), best first; the first that fits is taken.

    Only training whole models has a second choice: weights in the compute type, where FP32 ones do not fit.

    Raises:
        RequestError: the user asks for a type that this hardware does not multiply.
    """
    wanted = SHORT_DTYPES[request.torch_dtype] if request.torch_dtype else None
    candidates = _on_cpu(cpu, wanted, train_type) if gpu is None else _on_gpu(gpu, wanted, train_type)
    if request.fp8:
        return tuple(_fp8_asked_for(gpu, model, candidate, train_type, request) for candidate in candidates)
    if request.fp8 is None and wanted is None and _fp8_gains(gpu, model, train_type, request):
        why = "; FP8 matmuls in the frozen base, which Hopper runs at twice the bf16 rate"
        return tuple(_fp8(candidate, why, candidate.source) for candidate in candidates)
    return candidates


def _on_cpu(cpu: Cpu, wanted: Dtype | None, train_type: TrainType) -> tuple[Decision[Precision], ...]:
    if wanted == "fp16":
        raise RequestError("The CPU does not train in float16.", fix="Leave --torch_dtype out, or use float32.")
    compute: Dtype = wanted or ("bf16" if cpu.has_native_bf16 else "fp32")
    weights: Dtype = compute if wanted or train_type != "full" else "fp32"
    precision = Precision(weights=weights, compute=compute, fp32_matmul="ieee")
    if wanted:
        return (Decision(precision, "asked for", "user"),)
    reason = (
        "the CPU multiplies bf16 natively"
        if compute == "bf16"
        else "FP32: the CPU has no bf16 instructions, and emulating them is hundreds of times slower"
    )
    return (Decision(precision, reason),)


def _on_gpu(gpu: Gpu, wanted: Dtype | None, train_type: TrainType) -> tuple[Decision[Precision], ...]:
    can = _capabilities(gpu)
    if wanted == "bf16" and not can.bf16:
        raise RequestError(
            f"{gpu.name} ({can.name}) does not multiply bfloat16.", fix="Use --torch_dtype float16, or leave it out."
        )
    compute: Dtype = wanted or ("bf16" if can.bf16 else "fp16" if can.fp16 else "fp32")
    source: Source = "user" if wanted else "policy"
    why = "asked for" if wanted else _REASONS[compute].format(name=can.name)

    def with_weights(weights: Dtype, more: str = "") -> Decision[Precision]:
        tf32: Literal["tf32", "ieee"] = "tf32" if can.tf32 else "ieee"
        value = Precision(weights=weights, compute=compute, fp32_matmul=tf32, loss_scaling=compute == "fp16")
        return Decision(value, why + more, source)

    if compute == "fp16" and train_type == "full":
        return (with_weights("fp32", "; FP32 weights, since loss scaling needs gradients in FP32"),)
    if train_type != "full" or wanted or compute == "fp32":
        return (with_weights(compute),)
    return (
        with_weights("fp32", "; the weights are trained in FP32"),
        with_weights("bf16", "; weights and optimizer states in bf16, since FP32 ones do not fit"),
    )


_REASONS: dict[Dtype, str] = {
    "bf16": "{name} multiplies bf16 on tensor cores, TF32 serves what stays in FP32",
    "fp16": "{name} has FP16 tensor cores and no bf16, so FP16 with loss scaling",
    "fp32": "{name} has no tensor cores",
}


def _capabilities(gpu: Gpu) -> Capabilities:
    return capabilities(gpu.compute_capability or (0, 0))


def fp8_obstacle(gpu: Gpu | None, model: ModelShape, train_type: TrainType, request: TrainRequest) -> str | None:
    """Why FP8 matmuls are impossible here, None where they are possible."""
    if gpu is None:
        return "FP8 training needs a GPU"
    if not _capabilities(gpu).fp8:
        return f"{gpu.name} ({_capabilities(gpu).name}) has no FP8 tensor cores; Ada, Hopper and Blackwell have"
    if request.use_dora:
        return "DoRA takes the norm of the base's own weights in every pass, which FP8 would change"
    if train_type == "full" and model.moe is not None:
        return f"the experts of {model.name} are no linear layers of their own"
    odd = [r.name for r in model.linears if r.kind in ("attention", "mlp") and _is_odd(r.in_features, r.out_features)]
    return f"dimensions of {', '.join(odd)} are no multiples of {FP8_ALIGNMENT}" if odd else None


def _is_odd(*features: int) -> bool:
    return any(size % FP8_ALIGNMENT for size in features)


def _fp8_gains(gpu: Gpu | None, model: ModelShape, train_type: TrainType, request: TrainRequest) -> bool:
    return (
        gpu is not None
        and fp8_obstacle(gpu, model, train_type, request) is None
        and _fp8_without_gain(gpu, model, train_type) is None
    )


def _fp8_without_gain(gpu: Gpu, model: ModelShape, train_type: TrainType) -> str | None:
    """Why FP8 matmuls that are possible are not taken unasked; None where they are."""
    if train_type == "full":
        return "a third faster on an H200, and the loss of SmolLM2-135M 0.7 % higher after it; --fp8 true takes it"
    if model.moe is not None:
        return "routed experts stay in 16 bit, so little is left to gain"
    if model.hidden_size < FP8_HIDDEN_SIZE:
        return f"hidden size {model.hidden_size} gains nothing: quantising costs more than the faster matmuls save"
    if not _capabilities(gpu).fp8_training_measured:
        return f"its gain is not measured on {_capabilities(gpu).name}; --fp8 true takes it"
    return None


def fp8_left_out(gpu: Gpu, model: ModelShape, train_type: TrainType, request: TrainRequest) -> str:
    """Why a run on ``gpu`` does without FP8."""
    without = fp8_obstacle(gpu, model, train_type, request) or _fp8_without_gain(gpu, model, train_type)
    asked = "not wanted" if request.fp8 is False else f"{request.torch_dtype} is asked for"
    return without or asked


def _fp8_asked_for(
    gpu: Gpu | None, model: ModelShape, decision: Decision[Precision], train_type: TrainType, request: TrainRequest
) -> Decision[Precision]:
    obstacle = fp8_obstacle(gpu, model, train_type, request)
    if decision.value.compute != "bf16":
        obstacle = obstacle or f"the rest would be in {decision.value.compute}, and FP8 goes with bf16"
    if obstacle:
        raise RequestError(
            f"fp8 is asked for, but {obstacle}.", fix="Leave --fp8 out: adaptft takes the best type there is."
        )
    how = ": all three matmuls of each layer, whose weights stay as they are" if train_type == "full" else ""
    return _fp8(decision, f"; FP8 asked for{how}", "user")


def _fp8(decision: Decision[Precision], why: str, source: Source) -> Decision[Precision]:
    value = Precision(weights=decision.value.weights, compute="fp8", fp32_matmul=decision.value.fp32_matmul)
    return Decision(value, decision.reason + why, source)
