"""Shapes from arithmetic equal the models that transformers builds on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from adaptft.facts import ModelShape
from adaptft.shapes import FAMILIES, model_shape

_SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 512,
}  # fmt: skip
_QWEN_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_hidden_layers": 6}
_SHARED = {**_QWEN_MOE, "shared_expert_intermediate_size": 48}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama with biases everywhere": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama without key-value heads named": {"model_type": "llama", "num_key_value_heads": None},
    "mistral with a head_dim of its own": {"model_type": "mistral", "head_dim": 24},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 with one key-value head": {"model_type": "qwen2", "num_key_value_heads": 1, "tie_word_embeddings": True},
    "qwen3 with the family's head_dim": {"model_type": "qwen3"},
    "qwen3 with biases": {"model_type": "qwen3", "attention_bias": True, "head_dim": 32},
    "qwen2_moe, every layer": {"model_type": "qwen2_moe", **_SHARED},
    "qwen2_moe, every second layer less one": {
        "model_type": "qwen2_moe", **_SHARED, "decoder_sparse_step": 2, "mlp_only_layers": [5]
    },
    "qwen2_moe without qkv biases": {"model_type": "qwen2_moe", **_SHARED, "qkv_bias": False},
    "qwen3_moe, every layer": {"model_type": "qwen3_moe", **_QWEN_MOE, "head_dim": 32},
    "qwen3_moe, first layers dense": {"model_type": "qwen3_moe", **_QWEN_MOE, "mlp_only_layers": [0, 1]},
    "qwen3_moe without an expert": {"model_type": "qwen3_moe", **_QWEN_MOE, "num_experts": 0},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma": {"model_type": "gemma", "head_dim": 32, "num_key_value_heads": 1},
    "gemma2": {"model_type": "gemma2", "head_dim": 32},
    "gemma3_text": {"model_type": "gemma3_text", "head_dim": 32},
    "phi3": {"model_type": "phi3", "pad_token_id": 0, "tie_word_embeddings": False},
    "olmo2, measured": {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"]},
    "granite, measured": {"model_type": "granite", "tie_word_embeddings": True},
    "gpt2, measured": {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4},
    "starcoder2, measured": {"model_type": "starcoder2", "use_bias": True},
    "deepseek_v3 with dense layers first, measured": {
        "model_type": "deepseek_v3", "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 2, "moe_intermediate_size": 32, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_group": 1,
        "topk_group": 1,
    },
}  # fmt: skip


def _config(name: str) -> dict[str, Any]:
    return {key: value for key, value in {**_SMALL, **CONFIGS[name]}.items() if value is not None}


def _meta_model(config: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    model.tie_weights()
    return model


def _linear_modules(shape: ModelShape) -> dict[str, tuple[int, int, bool]]:
    return {
        name: (row.in_features, row.out_features, row.bias)
        for row in shape.linears
        if row.is_linear_module
        for name in row.module_names(shape.num_layers)
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linear_layers_are_those_of_the_real_model(name: str) -> None:
    import torch
    from transformers.pytorch_utils import Conv1D

    config = _config(name)
    shape, model = model_shape(config, name), _meta_model(config)
    assert shape.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.architecture == type(model).__name__
    assert _linear_modules(shape) == {
        path: (module.in_features, module.out_features, module.bias is not None)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    } | {path: (module.nx, module.nf, True) for path, module in model.named_modules() if isinstance(module, Conv1D)}


@pytest.mark.parametrize("name", [name for name in CONFIGS if "moe" in name or "mixtral" in name or "deepseek" in name])
def test_fused_experts_are_rows_that_are_no_linear_modules(name: str) -> None:
    shape, model = model_shape(_config(name), name), _meta_model(_config(name))
    stacked = [parameter for path, parameter in model.named_parameters() if ".experts." in path]
    experts = [row for row in shape.linears if row.kind == "expert"]
    assert sum(row.num_weights for row in experts) == sum(parameter.numel() for parameter in stacked)
    assert not any(row.is_linear_module for row in experts)
    if shape.moe is not None:
        assert {row.per_token * shape.moe.num_experts for row in experts} == {
            row.count * shape.moe.experts_per_token for row in experts
        }
        unused = sum(row.in_features * row.out_features * (row.count - row.per_token) for row in experts)
        assert shape.num_active_parameters == shape.num_parameters - unused


def test_every_family_of_the_table_is_compared() -> None:
    assert {config["model_type"] for config in CONFIGS.values()} >= set(FAMILIES)


def test_the_routed_layers_of_measured_models_are_found() -> None:
    shape = model_shape(_config("deepseek_v3 with dense layers first, measured"), "deepseek")
    assert shape.moe is not None
    assert (shape.moe.layers, shape.moe.num_experts, shape.moe.experts_per_token) == ((2, 3), 4, 2)
