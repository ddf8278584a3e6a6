"""The number type of a served model's KV cache. Pure.

Sources: vLLM 0.32, docs ``features/quantization/quantized_kvcache``: FP8 without calibrated scales takes 1.0 for them;
advised from compute capability 8.9 on.
"""

from __future__ import annotations

from adaptft.errors import RequestError
from adaptft.facts import Machine, ServedModel
from adaptft.plans import Decision
from adaptft.requests import InferBackend, KvCacheDtype, ServeRequest

OLDEST_FP8_GPU = (8, 9)


def choose_kv_cache(
    machine: Machine, request: ServeRequest, served: ServedModel, backend: InferBackend
) -> Decision[KvCacheDtype]:
    """FP8 where the user asks for it or the export brings scales for it; else what the model computes in.

    Raises:
        RequestError: FP8 was asked for, and engine or GPU have none.
    """
    obstacle = _obstacle(machine, backend)
    if request.kv_cache_dtype == "fp8":
        if obstacle:
            raise RequestError(f"kv_cache_dtype fp8 is not possible here: {obstacle}.", fix="Leave it out.")
        return Decision("fp8", "asked for; half the memory a token", "user")
    if request.kv_cache_dtype == "auto":
        return Decision("auto", "asked for", "user")
    if served.has_kv_scales and not obstacle:
        return Decision("fp8", "the export brings calibrated scales for it")
    if obstacle:
        return Decision("auto", f"as the model computes: {obstacle}")
    return Decision(
        "auto", "as the model computes; FP8 (--kv_cache_dtype fp8) holds twice the tokens, with scales of 1.0"
    )


def _obstacle(machine: Machine, backend: InferBackend) -> str | None:
    if backend == "transformers" or not machine.gpus:
        return "FP8 needs vLLM or SGLang on a GPU"
    for gpu in machine.gpus:
        if gpu.compute_capability and gpu.compute_capability < OLDEST_FP8_GPU:
            major, minor = gpu.compute_capability
            return f"FP8 needs compute capability 8.9, {gpu.name} has {major}.{minor}"
    return None
