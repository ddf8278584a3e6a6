"""An OpenAI-compatible endpoint: engine, number type, GPUs, longest request, adapters. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from adaptft.errors import RequestError
from adaptft.facts import Machine, ModelShape, ServedModel, ServingEngine
from adaptft.plans import DTYPE_BYTES, Decision, Dtype, ServePlan
from adaptft.policy.devices import gpu_has_bf16
from adaptft.policy.engines import SERVER_NAME, EngineChoice, choose_engine
from adaptft.policy.format_table import SLOW_ON_CPU
from adaptft.policy.kv_cache import choose_kv_cache
from adaptft.policy.lora_slots import plan_slots, slot_bytes
from adaptft.policy.serving_devices import CPU_SEQUENCES, Load, choose_devices
from adaptft.policy.serving_memory import weights_bytes
from adaptft.requests import ServeRequest

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def plan_serving(
    machine: Machine,
    model: ModelShape,
    request: ServeRequest,
    *,
    served: ServedModel,
    engines: tuple[ServingEngine, ...] | None,
    must_start: bool = True,
) -> ServePlan:
    """Decide how ``served`` becomes an endpoint on ``machine``.

    Args:
        engines: installed engines, preferred ones first; None where that is not known (a recorded machine).
        must_start: a missing engine is an error; else the plan is only shown and warns.

    Raises:
        MissingPackage: no engine, or not the one asked for.
        DoesNotFit: the model, or the ``max_model_len`` asked for; the largest that fits is named.
        RequestError: a size, adapter or length that the engine or the model cannot take.
    """
    _check_names(served)
    choice = choose_engine(machine, request, engines, export_format=served.export_format, must_start=must_start)
    device: Literal["cuda", "cpu"] = "cuda" if machine.gpus else "cpu"
    _check_gpu_engine(request, choice, device)
    _check_sglang(request, served, choice, device)
    dtype = serving_dtype(machine, model)
    slots = plan_slots(served.adapters) if choice.backend != "transformers" else None
    kv_cache = choose_kv_cache(machine, request, served, choice.backend)
    load = Load(
        model=model,
        backend=choice.backend,
        dtype=dtype.value,
        weights_bytes=weights_bytes(model, dtype.value, served.file_bytes),
        adapters_bytes=slot_bytes(model, slots, DTYPE_BYTES[dtype.value]),
        kv_cache_dtype=kv_cache.value,
    )
    devices = choose_devices(machine, load, request)
    reasons = {"engine": choice.reason, "dtype": dtype.reason, **devices.reasons, "kv_cache_dtype": kv_cache.reason}
    if slots:
        reasons["max_lora_rank"] = slots.reason
    return ServePlan(
        request=replace(request, api_key=None),
        model=model,
        model_path=served.model_path,
        served_model_name=served.name,
        backend=choice.backend,
        python=choice.engine.python if choice.engine else request.vllm_python or "python3",
        engine_version=f"{choice.engine.package} {choice.engine.version}" if choice.engine else None,
        device=device,
        dtype=dtype.value,
        max_model_len=devices.max_model_len,
        tensor_parallel_size=devices.size,
        gpu_memory_utilization=devices.utilization,
        gpu_indices=devices.gpu_indices,
        cpu_threads=max(1, int(machine.cpu.usable_cores)) if device == "cpu" else None,
        max_num_seqs=CPU_SEQUENCES if device == "cpu" and choice.backend == "vllm" else None,
        adapters={adapter.name: adapter.path for adapter in served.adapters},
        max_lora_rank=slots.max_rank if slots else None,
        max_loras=slots.count if slots else 0,
        kv_cache_dtype=kv_cache.value,
        kv_cache_bytes_per_token=devices.memory.kv_bytes_per_token,
        kv_cache_bytes=devices.kv_cache_bytes,
        generation_config=served.generation_config,
        is_greedy=served.is_greedy,
        chat_template=served.chat_template,
        tool_parser=served.tool_parser if choice.backend != "transformers" else None,
        reasons=reasons,
        warnings=(*choice.warnings, *served.notes, *_warnings(request, served, choice, device)),
    )


def serving_dtype(machine: Machine, model: ModelShape) -> Decision[Dtype]:
    """Number type of activations, KV cache and unquantised weights on ``machine``."""
    if not machine.gpus:
        if machine.cpu.has_native_bf16:
            return Decision("bf16", "this CPU multiplies in bf16")
        if model.quantization:
            return Decision("bf16", "what the CPU kernels of quantised checkpoints take")
        return Decision("fp32", "this CPU only emulates bf16, which is many times slower")
    without = next((gpu for gpu in machine.gpus if not gpu_has_bf16(gpu)), None)
    if without:
        return Decision("fp16", f"{without.name} has no bf16")
    return Decision("bf16", f"{machine.gpus[0].name} computes in bf16")


def _check_gpu_engine(request: ServeRequest, choice: EngineChoice, device: Literal["cuda", "cpu"]) -> None:
    for option in ("tensor_parallel_size", "gpu_memory_utilization"):
        value = getattr(request, option)
        unit = option == "tensor_parallel_size" and value == 1
        if value is None or unit or (choice.backend != "transformers" and device == "cuda"):
            continue
        where = "without a GPU" if choice.backend != "transformers" else f"by {SERVER_NAME[choice.backend]}"
        raise RequestError(
            f"{option} {value} is not understood {where}.",
            fix=f"Leave it out, or serve with vLLM on a GPU (engine taken because: {choice.reason}).",
        )


def _check_sglang(
    request: ServeRequest, served: ServedModel, choice: EngineChoice, device: Literal["cuda", "cpu"]
) -> None:
    """What SGLang cannot be told, or not without harm: refused rather than served otherwise than trained."""
    if choice.backend != "sglang":
        return
    obstacles = {
        "it needs a GPU (its CPU build is for Xeons with AMX)": device == "cpu",
        "it takes keys on its command line only, where every user of the machine reads them": bool(request.api_key),
        "the adapters stop at tokens that the base's generation_config.json lacks, and it takes no others": bool(
            served.generation_config
        ),
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise RequestError(f"SGLang cannot serve this: {obstacle}.", fix="Leave --infer_backend out: vLLM can.")


def _check_names(served: ServedModel) -> None:
    names = [served.name, *(adapter.name for adapter in served.adapters)]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(
                f"Two of the served models are called {name}.",
                fix="Give each adapter its own name: --adapters NAME=DIR; or the base: --served_model_name NAME",
            )


def _warnings(
    request: ServeRequest, served: ServedModel, choice: EngineChoice, device: Literal["cuda", "cpu"]
) -> tuple[str, ...]:
    found = {
        SLOW_ON_CPU: device == "cpu" and (served.export_format or "").startswith("fp8"),
        "SGLang samples where a request names no temperature; the model's generation config says greedily.": (
            choice.backend == "sglang" and served.is_greedy
        ),
        f"Anyone who reaches {request.host}:{request.port} can use the endpoint: set ADAPTFT_API_KEY.": not (
            request.host in LOOPBACK or request.api_key
        ),
    }
    return tuple(warning for warning, is_due in found.items() if is_due)
