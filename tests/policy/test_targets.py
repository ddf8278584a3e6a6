"""target_modules in all its forms, against the shape and against what PEFT then does."""

from __future__ import annotations

from typing import Any

import models_factory
import pytest

from adaptft.errors import RequestError
from adaptft.facts import ModelShape
from adaptft.policy.kernels import choose_loss
from adaptft.policy.targets import _MOVED_BY_PEFT, Targets, adapted_linears, kept_in_16_bit, resolve_targets
from adaptft.shapes import model_shape

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MOE = {
    "model_type": "qwen2_moe", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "max_position_embeddings": 512,
}  # fmt: skip


def _shape(name: str = "tiny-qwen2", **departures: Any) -> ModelShape:
    return model_shape(models_factory.config_of(name, **departures), name)


# what the user wrote -> linear layers of tiny-qwen2 that it adapts (4 layers of 7)
COUNTS = [
    (("q_proj",), 4),
    (("q_proj,v_proj",), 8),
    (("q_proj v_proj",), 8),
    (("q_proj", "v_proj"), 8),
    (('["q_proj", "v_proj"]',), 8),
    (("all-linear",), 28),
    (("ALL-LINEAR",), 28),
    (("all",), 28),
    (('["all-linear"]',), 28),
    ((r"[a-z]+.*_pro[j]",), 28),
    ((), 28),
    ((r".*layers\.(0|1)\.self_attn\.(q|v)_proj",), 4),
    ((r".*layers\.[01]\..*_proj", "layers.3.mlp.down_proj"), 15),
    ((r"model\.layers\.\d{1,2}\.mlp\..*",), 12),
    (("layers.3.mlp.down_proj",), 1),
    (("self_attn.q_proj", "mlp.up_proj"), 8),
    (("all-linear", "q_proj"), 28),
]


@pytest.mark.parametrize(("wanted", "count"), COUNTS)
def test_every_form_adapts_what_it_says(wanted: tuple[str, ...], count: int) -> None:
    targets = resolve_targets(_shape(), wanted)
    assert targets.num_modules == count
    assert sum(row.count for row in targets.linears) == count
    assert bool(targets.names) != bool(targets.regex)


def _adapted_by_peft(config: dict[str, Any], targets: Targets) -> tuple[set[str], int]:
    """The modules that PEFT adapts at rank 8, and the number of parameters that it trains."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=targets.regex or list(targets.names)))
    ending = ".lora_A.default"
    modules = {name.removesuffix(ending) for name, _ in adapted.named_modules() if name.endswith(ending)}
    trainable = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    return {name.removeprefix("base_model.model.") for name in modules}, trainable


@pytest.mark.parametrize(("wanted", "count"), COUNTS)
def test_peft_adapts_the_same_modules(wanted: tuple[str, ...], count: int) -> None:
    targets = resolve_targets(_shape(), wanted)
    modules, trainable = _adapted_by_peft(models_factory.config_of("tiny-qwen2"), targets)
    assert modules == set(targets.modules)
    assert trainable == targets.trainable_parameters(8)
    assert len(modules) == count


@pytest.mark.parametrize("wanted", ["all-linear", "down_proj", "shared_expert.up_proj", r".*\.1\.mlp\..*"])
def test_peft_adapts_the_same_modules_of_a_mixture(wanted: str) -> None:
    targets = resolve_targets(model_shape(MOE, "moe"), (wanted,))
    assert _adapted_by_peft(MOE, targets) == (set(targets.modules), targets.trainable_parameters(8))


@pytest.mark.parametrize(
    ("wanted", "problem", "fix"),
    [
        (("query_key_value",), "query_key_value matches no linear layer", "q_proj, k_proj"),
        (("q_prj",), "q_prj matches no linear layer", "Did you mean q_proj"),
        (("q_proj", "nothing_like_it"), "nothing_like_it", "all-linear"),
        (("q_proj,nothing_like_it",), "nothing_like_it", "all-linear"),
        (("mlp",), "mlp is no linear layer", "gate_proj,up_proj,down_proj"),
        (("layers.0",), "layers.0 is no linear layer", "all-linear"),
        (("q_proj", "lm_head"), "lm_head of tiny-qwen2 is tied to the embedding", "--modules_to_save lm_head"),
        (("",), "target_modules is empty", "Leave it out"),
        (("  ", ","), "target_modules is empty", "Leave it out"),
        (("[]",), "target_modules is empty", "Leave it out"),
        ((r"layers\.(0",), "no valid regex", "Write a regex"),
        ((r".*\.w[123]",), "matches no linear layer", "q_proj"),
        (("embed_tokens",), "embed_tokens matches no linear layer", "q_proj"),
        (("layers.9.mlp.down_proj",), "layers.9.mlp.down_proj matches no linear layer", "down_proj"),
    ],
)
def test_words_that_mean_nothing_are_refused(wanted: tuple[str, ...], problem: str, fix: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_targets(_shape(), wanted)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_a_head_of_its_own_may_be_adapted() -> None:
    assert resolve_targets(_shape("tiny-llama"), ("q_proj", "lm_head")).num_modules == 5


@pytest.mark.parametrize(
    ("wanted", "kernel"), [(("q_proj", "lm_head"), "full"), ((".*(q_proj|lm_head)",), "full"), (("q_proj",), "chunked")]
)
def test_an_adapter_on_the_head_is_in_the_loss(wanted: tuple[str, ...], kernel: str) -> None:
    shape = _shape("tiny-llama")
    loss = choose_loss(shape, adapts_head=resolve_targets(shape, wanted).has_head)
    assert loss.value.kernel == kernel
    assert ("the head has an adapter" in loss.reason) == (kernel == "full")


def test_a_head_that_is_trained_whole_needs_no_adapter() -> None:
    targets = resolve_targets(_shape(), ("q_proj", "lm_head"), modules_to_save=("lm_head",))
    assert targets.names == ("q_proj",)


def test_nothing_left_to_adapt_is_refused() -> None:
    with pytest.raises(RequestError, match="left to adapt"):
        resolve_targets(_shape(), ("lm_head",), modules_to_save=("lm_head",))


def test_a_regex_that_meets_the_tied_head_leaves_it_out_and_says_so() -> None:
    targets = resolve_targets(_shape(), (".*",))
    assert targets.num_modules == 28
    assert targets.notes == ("lm_head is tied to the embedding, so an adapter on it could not be merged.",)


def test_trainable_parameters_with_heads_apart_from_hidden() -> None:
    shape = _shape(
        "tiny-qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=14,
        num_key_value_heads=1, head_dim=128,
    )  # fmt: skip
    targets = resolve_targets(shape, ("all-linear",))
    assert targets.trainable_parameters(8) == 1_941_504
    outputs = sum(row.out_features * row.count for row in targets.linears)
    assert targets.trainable_parameters(8, use_dora=True) == 1_941_504 + outputs


def test_a_mixture_adapts_shared_experts_and_no_gate() -> None:
    shape = model_shape(MOE, "moe")
    targets = resolve_targets(shape, ("all-linear",))
    assert targets.names == ALL
    assert {row.kind for row in targets.linears} == {"attention", "mlp", "shared_expert"}
    assert not any(name.endswith(("mlp.gate", "shared_expert_gate")) for name in targets.modules)
    assert targets.notes == ("Routed experts get no adapters: transformers keeps them as fused parameters.",)
    assert kept_in_16_bit(shape) == ("mlp.gate", "mlp.shared_expert_gate", "lm_head")


@pytest.mark.parametrize("word", ["gate", "mlp.gate", "shared_expert_gate"])
def test_gates_are_refused_by_name(word: str) -> None:
    with pytest.raises(RequestError, match="only routes tokens"):
        resolve_targets(model_shape(MOE, "moe"), (word,))


def test_fused_experts_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="fused parameter"):
        resolve_targets(model_shape(MOE, "moe"), ("experts.down_proj",))


def test_names_that_peft_moves_onto_the_experts_are_left_out_and_refused() -> None:
    shape = _shape("tiny-moe", mlp_only_layers=[0])
    targets = resolve_targets(shape, ("all-linear",))
    assert targets.names == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert "PEFT would put those on the fused experts" in targets.notes[1]
    with pytest.raises(RequestError, match="PEFT would put these adapters on the fused experts"):
        resolve_targets(shape, ("mlp.down_proj",))


def test_the_table_of_moved_names_is_pefts() -> None:
    from peft.utils.transformers_weight_conversion import _MODEL_TO_CONVERSION_PATTERN

    moved = {kind for kind, pattern in _MODEL_TO_CONVERSION_PATTERN.items() if pattern == "qwen2_moe"}
    assert moved == set(_MOVED_BY_PEFT)


def test_adapted_rows_hold_only_the_adapted_layers() -> None:
    (row,) = adapted_linears(_shape(), (r".*layers\.(1|3)\.mlp\.down_proj",))
    assert (row.name, row.count, row.per_token, row.layers) == ("down_proj", 2, 2, (1, 3))
