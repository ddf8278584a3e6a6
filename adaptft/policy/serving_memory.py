"""Memory of a served model on one device: weights, adapters, workspace, and what is left for the KV cache.

vLLM takes ``gpu_memory_utilization`` of the whole device, measures a profile run and gives the rest to the
KV cache (``v1/worker/gpu_worker.py``); it refuses to start where that share is not free. The workspace here
is that profile run by shape: one batch of tokens through an MLP, and the logits of all sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from adaptft.facts import Machine, ModelShape
from adaptft.plans import DTYPE_BYTES, Dtype
from adaptft.policy.devices import host_free_bytes
from adaptft.policy.tensor_parallel import kv_heads_per_gpu
from adaptft.requests import InferBackend, KvCacheDtype
from adaptft.units import GiB

BLOCK_TOKENS = 16
DEFAULT_UTILIZATION = 0.9
CONTEXT_BYTES = round(0.6 * GiB)
"""What a process takes before vLLM looks how much is free."""
VLLM_FIXED_BYTES = round(1.0 * GiB)
"""CUDA graphs and communication buffers."""
FRAMEWORK_BYTES: dict[InferBackend, int] = {"vllm": 2 * GiB, "sglang": 2 * GiB, "transformers": 1 * GiB}
"""Python and libraries in host memory."""
HOST_SHARE = 0.9
LARGE_DEVICE_BYTES = 70 * GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """One device: ``kv_bytes`` is what the KV cache may take, negative where not even the weights fit."""

    device_bytes: int
    """What the engine may take in all."""
    weights_bytes: int
    adapters_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache."""
        return self.device_bytes - self.weights_bytes - self.adapters_bytes - self.workspace_bytes

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request that the KV cache holds, in whole blocks; 0 where nothing fits."""
        return max(0, self.kv_bytes // self.kv_bytes_per_token // BLOCK_TOKENS * BLOCK_TOKENS)


def kv_bytes_per_token(
    model: ModelShape, dtype: Dtype, tensor_parallel_size: int = 1, kv_cache_dtype: KvCacheDtype = "auto"
) -> int:
    """Bytes that one token adds to the KV cache of one device: 2 x layers x KV heads x head_dim x bytes."""
    heads = kv_heads_per_gpu(model, tensor_parallel_size)
    return 2 * model.num_layers * heads * model.head_dim * (1 if kv_cache_dtype == "fp8" else DTYPE_BYTES[dtype])


def weights_bytes(model: ModelShape, dtype: Dtype, file_bytes: int | None) -> int:
    """Weights in memory: as stored where they are quantised (``file_bytes``), else ``dtype``."""
    if model.quantization and file_bytes:
        return file_bytes
    return model.num_parameters * DTYPE_BYTES[dtype]


def workspace_bytes(model: ModelShape, device_bytes: int, tensor_parallel_size: int) -> int:
    """vLLM's profile run on a GPU.

    Its default batch is 8192 tokens and 1024 sequences on GPUs of 70 GiB or more, else 2048 and 256.
    """
    tokens, sequences = (8192, 1024) if device_bytes >= LARGE_DEVICE_BYTES else (2048, 256)
    activations = tokens * (3 * model.intermediate_size // tensor_parallel_size + 6 * model.hidden_size) * 2
    logits = 2 * sequences * model.vocab_size * 4
    return VLLM_FIXED_BYTES + max(activations, logits)


def largest_utilization(machine: Machine, gpu_indices: tuple[int, ...]) -> float:
    """Largest share of each GPU that vLLM finds free at its start, in hundredths."""
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpu_indices]
    share = min((gpu.memory_free_bytes - CONTEXT_BYTES) / gpu.memory_total_bytes for gpu in chosen)
    return max(0.0, math.floor(share * 100) / 100)


def host_bytes(machine: Machine) -> int:
    """Host memory that a server may take: what is available, and the container's limit."""
    return round(host_free_bytes(machine) * HOST_SHARE)


def device_bytes(
    machine: Machine, device: Literal["cuda", "cpu"], gpu_indices: tuple[int, ...], utilization: float | None
) -> int:
    """What the engine may take on each device; ``utilization`` None takes what is free."""
    if device == "cpu":
        return host_bytes(machine)
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpu_indices]
    if utilization is None:
        return min(round((gpu.memory_free_bytes - CONTEXT_BYTES) * 0.95) for gpu in chosen)
    return min(round(gpu.memory_total_bytes * utilization) for gpu in chosen)
