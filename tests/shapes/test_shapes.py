"""What config.json says, and what it must not say."""

from __future__ import annotations

from typing import Any

import pytest

from adaptft.errors import ModelError
from adaptft.shapes import model_shape

QWEN3_ODD_HEADS = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 1, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN2_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_size": 512, "intermediate_size": 1408,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 1024, "num_experts": 12, "num_experts_per_tok": 3,
    "decoder_sparse_step": 2, "mlp_only_layers": [5], "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 8320, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip


def test_head_dim_apart_from_hidden_over_heads_and_one_kv_head() -> None:
    shape = model_shape(QWEN3_ODD_HEADS, "odd")
    assert shape.num_parameters == 316_043_264
    assert (shape.query_size, shape.key_value_size) == (1792, 128)
    assert 2 * shape.num_layers * shape.key_value_size * 2 == 6144  # bytes a token of the 16-bit cache


def test_moe_layers_between_dense_ones_with_shared_experts() -> None:
    shape = model_shape(QWEN2_MOE, "moe")
    assert (shape.num_parameters, shape.num_active_parameters) == (34_498_048, 27_420_160)
    assert shape.moe is not None
    assert shape.moe.layers == (1, 3)
    rows = {row.path: row for row in shape.linears}
    gate = rows["model.layers.*.mlp.shared_expert_gate"]
    assert (gate.out_features, gate.kind, gate.is_linear_module) == (1, "router", True)
    assert rows["model.layers.*.mlp.down_proj"].layers == (0, 2, 4, 5)


def test_a_tied_head_computes_and_has_no_parameters() -> None:
    head = model_shape(QWEN3_ODD_HEADS, "tied").linears[-1]
    assert (head.name, head.kind, head.tied) == ("lm_head", "head", True)
    assert (head.num_weights, head.num_parameters) == (1024 * 151936, 0)


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral", "sliding_window": 1024}, 1024),
        ({"model_type": "mistral"}, 4096),  # Mistral-7B v0.1 leaves nothing out, the class says 4096
        ({"sliding_window": 1024, "use_sliding_window": False}, None),
        ({"sliding_window": 1024, "use_sliding_window": True}, 1024),
    ],
)
def test_sliding_window_counts_only_where_it_is_used(change: dict[str, Any], window: int | None) -> None:
    assert model_shape(QWEN3_ODD_HEADS | change, "window").sliding_window == window


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
        ({"load_in_4bit": True}, "bitsandbytes"),
        (None, None),
    ],
)
def test_quantised_checkpoints_say_how(settings: dict[str, Any] | None, method: str | None) -> None:
    assert model_shape(QWEN3_ODD_HEADS | {"quantization_config": settings}, "q").quantization == method


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        ({"hidden_size": None}, "has no hidden_size", "published"),
        ({"vocab_size": "151936"}, "vocab_size = '151936'", "whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0", "from 1"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers = 1000000", "1024"),
        ({"intermediate_size": True}, "intermediate_size = True", "whole number"),
        ({"num_key_value_heads": 3}, "14 attention heads and 3 key-value heads", "divide"),
        ({"num_key_value_heads": 28}, "14 attention heads and 28 key-value heads", "divide"),
        ({"model_type": "qwen2", "head_dim": None}, "1024 that 14 heads do not divide", "head_dim"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes'", "true or false"),
        ({"model_type": None}, "has no model_type", "published"),
        ({"torch_dtype": 16}, "dtype = 16", "bfloat16"),
    ],
)
def test_missing_and_absurd_fields_are_named(change: dict[str, Any], problem: str, fix: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_shape(QWEN3_ODD_HEADS | change, "broken")
    assert problem in caught.value.problem
    assert "broken" in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_experts_per_tok": 13}, "num_experts_per_tok 13 of 12 experts"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
        ({"mlp_only_layers": "5"}, "mlp_only_layers = '5'"),
        ({"shared_expert_intermediate_size": None}, "no shared_expert_intermediate_size"),
    ],
)
def test_absurd_experts_are_named(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        model_shape(QWEN2_MOE | change, "broken")


def test_a_multimodal_model_is_refused_with_a_text_model_named() -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}
    with pytest.raises(ModelError, match="multimodal") as caught:
        model_shape(config, "gemma-3-4b")
    assert "gemma3_text" in caught.value.fix


@pytest.mark.parametrize(
    ("config", "kind", "nearest"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM", ""),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration", ""),
        ({"model_type": "qwen9", "architectures": ["Qwen9ForCausalLM"]}, "Qwen9ForCausalLM", "qwen"),
    ],
)
def test_an_unsupported_architecture_names_the_nearest(config: dict[str, Any], kind: str, nearest: str) -> None:
    with pytest.raises(ModelError, match=f"unsupported architecture: {kind}") as caught:
        model_shape(config, "other")
    assert f"the nearest supported one is {nearest}" in caught.value.fix


def test_a_config_that_transformers_cannot_build_is_a_two_line_error() -> None:
    with pytest.raises(ModelError, match="no model that transformers can build"):
        model_shape({"model_type": "olmo2", "hidden_size": "wide"}, "broken")
