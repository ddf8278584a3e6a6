"""Which GPUs serve, how much of them, and the longest request that they hold. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaptft.errors import DoesNotFit, RequestError
from adaptft.facts import Machine, ModelShape
from adaptft.plans import Dtype
from adaptft.policy import serving_memory, tensor_parallel
from adaptft.policy.serving_memory import ServingMemory
from adaptft.requests import InferBackend, KvCacheDtype, ServeRequest
from adaptft.units import GiB, format_bytes

CPU_SEQUENCES = 4
"""Requests that vLLM's CPU build answers at a time; each beyond this slows the others."""
FEWEST_TOKENS = 128
"""With shorter requests than this an endpoint is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the devices must carry: ``weights_bytes`` and ``adapters_bytes`` are of the whole model."""

    model: ModelShape
    backend: InferBackend
    dtype: Dtype
    weights_bytes: int
    adapters_bytes: int
    kv_cache_dtype: KvCacheDtype = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingDevices:
    """The GPUs taken (none: the CPU) and what fits on each of them."""

    gpu_indices: tuple[int, ...]
    utilization: float | None
    memory: ServingMemory
    max_model_len: int
    reasons: dict[str, str]

    @property
    def size(self) -> int:
        """Devices that share each layer."""
        return max(1, len(self.gpu_indices))

    @property
    def kv_cache_bytes(self) -> int:
        """On a GPU all that is left; in host memory only what ``CPU_SEQUENCES`` longest requests take."""
        if self.gpu_indices:
            return self.memory.kv_bytes
        return min(self.memory.kv_bytes, CPU_SEQUENCES * self.max_model_len * self.memory.kv_bytes_per_token)


def choose_devices(machine: Machine, load: Load, request: ServeRequest) -> ServingDevices:
    """The fewest GPUs on which the wanted length fits, else as many as model and machine allow.

    Raises:
        DoesNotFit: the weights, or the length or share of memory asked for; the largest that fits is named.
        RequestError: a length or a number of GPUs that the model cannot take.
    """
    wanted = _wanted_length(load.model, request)
    for size in _candidate_sizes(machine, load, request):
        indices = _freest_gpus(machine, size) if machine.gpus else ()
        utilization = _utilization(machine, request, indices) if load.backend != "transformers" and indices else None
        memory = _memory(machine, load, indices, utilization)
        if memory.longest_request >= wanted:
            break
    length, length_reason = _fit_length(load.model, request, memory, wanted)
    reasons = {"max_model_len": length_reason} | _reasons(machine, load.model, request, indices, utilization)
    return ServingDevices(
        gpu_indices=indices, utilization=utilization, memory=memory, max_model_len=length, reasons=reasons
    )


def _candidate_sizes(machine: Machine, load: Load, request: ServeRequest) -> tuple[int, ...]:
    num_gpus = len(machine.gpus)
    if load.backend == "transformers" or not num_gpus:
        return (1,)
    if request.tensor_parallel_size is not None:
        tensor_parallel.check_size(load.model, request.tensor_parallel_size, num_gpus)
        return (request.tensor_parallel_size,)
    return tuple(size for size in tensor_parallel.sizes(load.model) if size <= num_gpus)


def _freest_gpus(machine: Machine, count: int) -> tuple[int, ...]:
    by_room = sorted(machine.gpus, key=lambda gpu: (-(gpu.memory_free_bytes // GiB), gpu.index))
    return tuple(sorted(gpu.index for gpu in by_room[:count]))


def _utilization(machine: Machine, request: ServeRequest, indices: tuple[int, ...]) -> float:
    largest = serving_memory.largest_utilization(machine, indices)
    asked = request.gpu_memory_utilization
    if asked is None:
        return min(serving_memory.DEFAULT_UTILIZATION, largest)
    if not 0 < asked <= 1:
        raise RequestError(f"gpu_memory_utilization {asked} is no share.", fix="Give a number above 0, at most 1.")
    if asked > largest:
        raise DoesNotFit(
            f"gpu_memory_utilization {asked} is more than is free on GPU {', '.join(map(str, indices))}.",
            fix=f"Ask for at most {largest}, or end what else runs there.",
        )
    return asked


def _memory(machine: Machine, load: Load, indices: tuple[int, ...], utilization: float | None) -> ServingMemory:
    size = max(1, len(indices))
    device: Literal["cuda", "cpu"] = "cuda" if indices else "cpu"
    device_bytes = serving_memory.device_bytes(machine, device, indices, utilization)
    workspace = serving_memory.FRAMEWORK_BYTES[load.backend]
    if load.backend != "transformers" and indices:
        workspace = serving_memory.workspace_bytes(load.model, device_bytes, size)
    return ServingMemory(
        device_bytes=device_bytes,
        weights_bytes=load.weights_bytes // size,
        adapters_bytes=load.adapters_bytes // size,
        workspace_bytes=workspace,
        kv_bytes_per_token=serving_memory.kv_bytes_per_token(load.model, load.dtype, size, load.kv_cache_dtype),
    )


def _wanted_length(model: ModelShape, request: ServeRequest) -> int:
    asked, most = request.max_model_len, model.max_position_embeddings
    if asked is None:
        return most
    if asked < 1:
        raise RequestError(f"max_model_len {asked} is no length.", fix="Give a number of tokens above 0.")
    if asked > most:
        raise RequestError(
            f"max_model_len {asked} is longer than {model.name}'s {most} positions.",
            fix=f"Ask for at most {most}.",
        )
    return asked


def _fit_length(model: ModelShape, request: ServeRequest, memory: ServingMemory, wanted: int) -> tuple[int, str]:
    longest = memory.longest_request
    if longest >= wanted:
        return wanted, "asked for" if request.max_model_len else "the model's whole context fits"
    if longest < FEWEST_TOKENS:
        needed = memory.weights_bytes + memory.adapters_bytes + memory.workspace_bytes
        raise DoesNotFit(
            f"{model.name} does not fit: it needs {format_bytes(needed)} before any request, "
            f"the device gives {format_bytes(memory.device_bytes)}.",
            fix="Serve a quantised export (adaptft export --format awq), a smaller model, or use more or larger GPUs.",
        )
    if request.max_model_len:
        raise DoesNotFit(
            f"max_model_len {wanted} does not fit: its KV cache needs "
            f"{format_bytes(wanted * memory.kv_bytes_per_token)}, {format_bytes(memory.kv_bytes)} are left.",
            fix=f"The largest that fits is {longest}: --max_model_len {longest}",
        )
    kv = format_bytes(memory.kv_bytes)
    return longest, f"the largest that {kv} of KV cache hold; the model could take {wanted}"


def _reasons(
    machine: Machine, model: ModelShape, request: ServeRequest, indices: tuple[int, ...], utilization: float | None
) -> dict[str, str]:
    if not indices:
        return {}
    why = "the only GPU" if len(machine.gpus) == 1 else "the fewest GPUs on which it fits"
    if request.tensor_parallel_size:
        why = "asked for"
    reasons = {"tensor_parallel_size": f"{why}; {tensor_parallel.describe_kv_heads(model, len(indices))}"}
    if utilization is not None:
        share = "what is free" if utilization < serving_memory.DEFAULT_UTILIZATION else "the rest is left for others"
        reasons["gpu_memory_utilization"] = "asked for" if request.gpu_memory_utilization else share
    return reasons
