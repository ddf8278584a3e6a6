"""The model families whose sizes are computed from config.json, one row each.

A row says how a family departs from Llama's layout. Source: the modelling files of transformers 5.17; the tests
build every family on the meta device and compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Bias = bool | str
"""True, False, or the name of the config field that decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One ``model_type``; ``defaults`` are its values for fields that published configs leave out."""

    architecture: str
    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    query_key_norms: bool = False
    norms_per_layer: int = 2
    fused_projections: bool = False
    """One qkv_proj and one gate_up_proj in place of three and two layers."""
    experts: Literal["every layer", "some layers"] | None = None
    shared_expert: bool = False
    window_switch: bool = False
    """sliding_window counts only where use_sliding_window is true."""
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_GEMMA_DEFAULTS = {"head_dim": 256, "tie_word_embeddings": True}
_GEMMA3_DEFAULTS = {
    **_GEMMA_DEFAULTS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        architecture="LlamaForCausalLM", qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "mistral": Family(architecture="MistralForCausalLM", defaults={"num_key_value_heads": 8, "sliding_window": 4096}),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        experts="every layer",
        defaults={"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2": Family(architecture="Qwen2ForCausalLM", qkv_bias=True, window_switch=True),
    "qwen2_moe": Family(
        architecture="Qwen2MoeForCausalLM",
        qkv_bias="qkv_bias",
        experts="some layers",
        shared_expert=True,
        window_switch=True,
        defaults={"qkv_bias": True},
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        query_key_norms=True,
        window_switch=True,
        defaults={"head_dim": 128},
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        query_key_norms=True,
        experts="some layers",
        window_switch=True,
    ),
    "gemma": Family(
        architecture="GemmaForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        defaults=_GEMMA_DEFAULTS,
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        norms_per_layer=4,
        defaults={**_GEMMA_DEFAULTS, "sliding_window": 4096},
    ),
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        query_key_norms=True,
        norms_per_layer=4,
        defaults=_GEMMA3_DEFAULTS,
    ),
    "phi3": Family(architecture="Phi3ForCausalLM", fused_projections=True),
}
