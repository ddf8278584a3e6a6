"""A serving plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adaptft.facts import ModelShape
from adaptft.plans.common import Dtype
from adaptft.requests import InferBackend, KvCacheDtype, ServeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """A complete serving plan; ``adaptft serve --print`` shows the command made from it."""

    request: ServeRequest
    model: ModelShape
    model_path: str
    served_model_name: str
    backend: InferBackend
    python: str
    """The interpreter that runs the engine (its own environment, for vLLM)."""
    device: Literal["cuda", "cpu"]
    dtype: Dtype
    max_model_len: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    max_lora_rank: int | None = None
    max_loras: int = 0
    """Adapters that one batch may mix; the slots are allocated at ``max_lora_rank``."""
    kv_cache_dtype: KvCacheDtype = "auto"
    kv_cache_bytes_per_token: int = 0
    kv_cache_bytes: int = 0
    """Memory left for the KV cache; both are of one device."""
    gpu_indices: tuple[int, ...] = ()
    cpu_threads: int | None = None
    max_num_seqs: int | None = None
    generation_config: str | None = None
    """Folder whose generation_config.json holds all stop tokens; None: the model's own."""
    is_greedy: bool = False
    """True where a request that names no temperature is to be answered greedily, as the generation config says."""
    chat_template: str | None = None
    """Template file that replaces the model's own."""
    tool_parser: str | None = None
    """The engine's parser of tool calls; None where the chat template has none."""
    engine_version: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
