"""The export plan: format, layers, group size, device, calibration and size, each with its reason. Pure."""

from __future__ import annotations

from adaptft.errors import ExportError, OutputError
from adaptft.facts import Machine, ModelShape
from adaptft.plans import DTYPE_BYTES, Decision, Dtype, ExportPlan, Residence
from adaptft.policy.devices import Device, choose_device
from adaptft.policy.export_memory import HostMemory, choose_memory, stored_dtype
from adaptft.policy.export_time import export_seconds
from adaptft.policy.format_table import FORMATS, FormatFacts
from adaptft.policy.groups import Layout, layout, num_modules
from adaptft.policy.servable import check_target, serving_machine, serving_warnings
from adaptft.requests import ExportRequest
from adaptft.units import format_bytes

_CALIBRATION: dict[Device, tuple[int, int]] = {"cuda": (256, 2048), "cpu": (32, 256)}
"""Rows x tokens. 256 x 2048 is what llm-compressor's examples take; a CPU would need hours for it."""
_FITTING: dict[Device, tuple[int, int]] = {"cuda": (64, 1024), "cpu": (16, 256)}
"""The same where nothing but the mean and variance of each channel is wanted."""


def plan_export(
    machine: Machine,
    model: ModelShape,
    request: ExportRequest,
    *,
    target: Machine | None = None,
    is_qlora: bool = False,
) -> ExportPlan:
    """Decide how ``model`` (the base, or a full model) is exported on ``machine``.

    Args:
        target: the machine that will serve the export; None where it is this one, or the request's ``for_gpu``.
        is_qlora: the adapter was trained on an NF4 base, which is made again and widened whole.

    Raises:
        ExportError: the model is compressed already, no layer of it can be, or transformers could not load the
            result; no kernel serves the format on the target.
        RequestError: no such GPU as ``for_gpu``; a group size that the format or the model does not allow.
        MachineError: a GPU was asked for and there is none.
        DoesNotFit: the weights do not fit into host memory.
        OutputError: the export does not fit on the disk.
    """
    facts = FORMATS[request.format]
    _check_source(model)
    target = serving_machine(request, target)
    check_target(request, model, target)
    _check_experts(facts, model, request)
    chosen = layout(facts, model, request.group_size)
    device = _device(facts, machine, request)
    memory = choose_memory(machine, model, facts, device.value, can_stream=not is_qlora and model.moe is None)
    calibration = _calibration(facts, model, request, device.value, memory.residence.value)
    symmetric = _symmetric(facts, model)
    calibrated = calibration.value[0] * calibration.value[1]
    seconds = export_seconds(request, model.linears, machine, device.value, calibrated)
    size = exported_bytes(facts, model, chosen, symmetric=symmetric.value)
    _check_disk(machine, size + _scratch_bytes(facts, model, request, memory))
    return ExportPlan(
        request=request,
        model=model,
        format=request.format,
        device=device.value,
        compute_dtype=memory.dtype.value,
        residence=memory.residence.value,
        saved_dtype=_saved_dtype(model),
        group_size=chosen.group_size.value,
        symmetric=symmetric.value,
        ignored_modules=chosen.ignored_patterns if facts.is_compressed else (),
        num_compressed_modules=num_modules(chosen.compressed),
        num_calibration_rows=calibration.value[0],
        max_length=calibration.value[1],
        source_bytes=model.num_parameters * DTYPE_BYTES[_saved_dtype(model)],
        predicted_bytes=size,
        bits_per_weight=bits_per_weight(facts, chosen, symmetric=symmetric.value),
        limits=facts.limits,
        predicted_seconds=seconds.value,
        predicted_host_bytes=memory.num_bytes,
        servable_on=facts.servable_on,
        reasons=_reasons(facts, model, chosen, symmetric, device, memory, calibration) | {"seconds": seconds.reason},
        warnings=(*serving_warnings(request, model, target or machine), *_shape_warnings(facts, chosen)),
    )


def exported_bytes(facts: FormatFacts, model: ModelShape, chosen: Layout, *, symmetric: bool) -> int:
    """Size of the weights on disk: compressed layers with their scales, everything else in 16 bit."""
    weights = sum(linear.num_weights for linear in chosen.compressed)
    return _compressed_bits(facts, chosen, symmetric=symmetric) // 8 + (model.num_parameters - weights) * 2


def bits_per_weight(facts: FormatFacts, chosen: Layout, *, symmetric: bool) -> float:
    """Of the compressed layers, their scales and zero points counted; 16 where none is compressed."""
    weights = sum(linear.num_weights for linear in chosen.compressed)
    return _compressed_bits(facts, chosen, symmetric=symmetric) / weights if weights else 16.0


def _compressed_bits(facts: FormatFacts, chosen: Layout, *, symmetric: bool) -> int:
    weights = sum(linear.num_weights for linear in chosen.compressed)
    channels = sum(linear.out_features * linear.count for linear in chosen.compressed)
    groups = weights // chosen.group_size.value if chosen.group_size.value else 0
    blocks = weights // facts.block**2 if facts.block else 0
    group_bits = facts.group_bits + (0 if symmetric else facts.zero_point_bits)
    return weights * facts.weight_bits + channels * facts.channel_bits + groups * group_bits + blocks * 16


def _check_source(model: ModelShape) -> None:
    if model.quantization is not None:
        raise ExportError(
            f"{model.name} is compressed already ({model.quantization}); compressing it again would lose twice.",
            fix="Export from the 16-bit model: give it with --model.",
        )


def _check_experts(facts: FormatFacts, model: ModelShape, request: ExportRequest) -> None:
    if model.moe is not None and not facts.takes_experts:
        raise ExportError(
            f"{request.format} of a mixture of experts can be written, but transformers 5.17 cannot load it back.",
            fix="Use --format fp8 or awq.",
        )


def _device(facts: FormatFacts, machine: Machine, request: ExportRequest) -> Decision[Device]:
    if not facts.is_compressed and request.device is None:
        return Decision("cpu", "merging is one addition a weight: copying them to a GPU would take longer")
    return choose_device(machine, request.device)


def _saved_dtype(model: ModelShape) -> Dtype:
    """The base's own 16-bit type; bf16 for one stored in 32 bit, as servers compute in 16 bit anyway."""
    return "fp16" if stored_dtype(model) == "fp16" else "bf16"


def _calibration(
    facts: FormatFacts, model: ModelShape, request: ExportRequest, device: Device, residence: Residence
) -> Decision[tuple[int, int]]:
    if facts.is_fitted:
        return _fitting(model, request, device, residence)
    if not facts.needs_calibration:
        return Decision((0, 0), "the format needs none: scales come from the weights alone")
    why = "what llm-compressor's examples take" if device == "cuda" else "so few because a CPU is slow"
    return _rows(_CALIBRATION[device], why, model, request)


def _fitting(
    model: ModelShape, request: ExportRequest, device: Device, residence: Residence
) -> Decision[tuple[int, int]]:
    """Scales need no rows; rounding is better with some, where a look at them costs little."""
    if residence == "by_layer":
        return Decision((0, 0), "none: memory never has the whole model, so each weight is rounded to the nearest")
    if device == "cpu" and request.quant_n_samples is None:
        why = "none, as a CPU is slow: each weight is rounded to the nearest; --quant_n_samples 16 rounds for the data"
        return Decision((0, 0), why)
    return _rows(_FITTING[device], "weights are rounded for what these put into their layers", model, request)


def _rows(usual: tuple[int, int], why: str, model: ModelShape, request: ExportRequest) -> Decision[tuple[int, int]]:
    rows, length = usual[0], min(usual[1], model.max_position_embeddings)
    if request.quant_n_samples is None and request.max_length is None:
        return Decision((rows, length), why)
    return Decision((request.quant_n_samples or rows, request.max_length or length), "as asked for", "user")


def _symmetric(facts: FormatFacts, model: ModelShape) -> Decision[bool]:
    if not facts.zero_point_bits:
        return Decision(True, "the format has no zero points")
    if model.moe is not None:
        return Decision(True, "without zero points: transformers 5.17 cannot load those of routed experts")
    return Decision(False, "with zero points")


def _scratch_bytes(facts: FormatFacts, model: ModelShape, request: ExportRequest, memory: HostMemory) -> int:
    """Weights that change while the model stays on disk: all of them, where an adapter or calibration changes them."""
    changes = request.adapters is not None or facts.needs_calibration
    weights = sum(linear.num_weights for linear in model.linears)
    return weights * DTYPE_BYTES[memory.dtype.value] if memory.residence.value == "by_layer" and changes else 0


def _check_disk(machine: Machine, size: int) -> None:
    if machine.disk is not None and size > machine.disk.free_bytes:
        raise OutputError(
            f"The export will take {format_bytes(size)}; {machine.disk.path} has "
            f"{format_bytes(machine.disk.free_bytes)} free.",
            fix="Free some space, or give a folder on another disk with --output_dir.",
        )


def _reasons(
    facts: FormatFacts,
    model: ModelShape,
    chosen: Layout,
    symmetric: Decision[bool],
    device: Decision[Device],
    memory: HostMemory,
    calibration: Decision[tuple[int, int]],
) -> dict[str, str]:
    reasons = {
        "format": facts.title,
        "kernels": facts.kernels,
        "device": device.reason,
        "compute_dtype": memory.dtype.reason,
        "residence": memory.residence.reason,
        "group_size": chosen.group_size.reason,
        "symmetric": symmetric.reason,
        "calibration": calibration.reason,
    }
    if facts.is_compressed:
        reasons["ignored_modules"] = (
            "the head, routers and one-output gates stay in 16 bit: small, and all depends on them"
        )
    if facts.is_compressed and model.moe is not None:
        reasons["experts"] = (
            f"the {model.moe.num_experts} experts of a layer are compressed one by one: llm-compressor takes the fused "
            "weights apart where it knows the architecture; the report counts them"
        )
    return reasons


def _shape_warnings(facts: FormatFacts, chosen: Layout) -> tuple[str, ...]:
    """Marlin, the fast 4-bit kernel, takes inputs divisible by 128 and outputs divisible by 64 (vLLM 0.32)."""
    if not facts.is_grouped:
        return ()
    odd = sorted({linear.name for linear in chosen.compressed if linear.in_features % 128 or linear.out_features % 64})
    if not odd:
        return ()
    return (f"The shapes of {', '.join(odd)} do not fit the Marlin kernel; vLLM serves them with a slower one.",)
