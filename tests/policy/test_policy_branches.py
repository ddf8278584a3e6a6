"""Branches of the policy that the plans of ordinary machines do not reach, each with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_05B, QWEN_7B, busy, machine, qwen2

from adaptft.facts import DatasetShape, ModelShape, Software
from adaptft.plans import LossKernel, TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.activations import layer_activation_bytes
from adaptft.policy.architectures import capabilities
from adaptft.policy.arrangements import own_rows
from adaptft.policy.assumed import machine_with
from adaptft.policy.gpus import gpu_named
from adaptft.policy.kernels import choose_attention, choose_compile
from adaptft.policy.memory import estimate_memory
from adaptft.policy.precision import fp8_obstacle
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest
from adaptft.shapes import model_shape

GEMMA2 = replace(QWEN_05B, model_type="gemma2")
QWEN3 = replace(QWEN_05B, model_type="qwen3")
MOE = model_shape(
    {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "head_dim": 128,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    },
    "moe",
)  # fmt: skip


def plan(*gpus: str, model: ModelShape = QWEN_7B, dataset: DatasetShape = ALPACA, **wishes) -> TrainPlan:
    return plan_training(machine(*gpus), model, dataset, TrainRequest(model="m", **wishes))


def place(whole, request):
    """The arrangement that is weighed first."""
    return own_rows(whole, request, lambda ranks: True)[0]


def old(key: str, capability: tuple[int, int] | None):
    """A machine whose only GPU is of another generation."""
    whole = machine(key)
    return replace(whole, gpus=(replace(whole.gpus[0], name="Old", compute_capability=capability),))


@pytest.mark.parametrize(
    ("capability", "name"),
    [((5, 2), "Maxwell or older"), ((6, 1), "Pascal"), ((8, 7), "Ampere"), ((12, 1), "Blackwell (GeForce, RTX PRO)"),
     ((13, 0), "Blackwell (GeForce, RTX PRO)")],
)  # fmt: skip
def test_a_card_between_two_rows_is_of_the_older_generation(capability, name):
    assert capabilities(capability).name == name


@pytest.mark.parametrize(("capability", "words"), [((6, 1), "Old (Pascal)"), (None, "Old (unknown generation)")])
def test_a_gpu_that_is_too_old_is_named_and_the_cpu_is_taken(capability, words):
    decision = place(old("t4", capability), TrainRequest(model="m"))
    assert decision.value.strategy == "cpu"
    assert decision.reason == f"no GPU that can be used (compute capability 7.0 or newer): {words}"


def test_where_all_gpus_are_busy_the_freest_is_taken():
    both = busy(busy(machine("a100-80g", "a100-80g"), 0, 20), 1, 30)
    decision = place(both, TrainRequest(model="m"))
    assert decision.value.gpu_indices == (1,)
    assert decision.reason.endswith("30.0 GiB free; 1 other GPU busy or of another model")


def test_of_two_models_the_one_with_more_memory_is_taken():
    decision = place(machine("4090", "a100-80g", "4090"), TrainRequest(model="m"))
    assert decision.value.gpu_indices == (1,)
    assert decision.reason.endswith("2 other GPUs busy or of another model")


def test_the_number_of_gpus_and_the_cpu_are_the_users():
    four = machine(*["l4"] * 4)
    decision = place(busy(four, 1, 20), TrainRequest(model="m", num_gpus=2))
    assert (decision.value.gpu_indices, decision.source) == ((0, 2), "user")
    assert decision.reason.endswith("; 2 asked for")
    assert place(four, TrainRequest(model="m", device="cpu")).reason == "asked for"


@pytest.mark.parametrize(
    ("key", "model", "precision", "implementation", "reason"),
    [
        ("a100-80g", GEMMA2, {}, "eager", "gemma2 caps its attention scores, which no fused kernel does"),
        ("a100-80g", replace(QWEN_05B, head_dim=512), {}, "sdpa", "heads of 512 are wider than the 256"),
        ("a100-80g", QWEN_05B, {"torch_dtype": "float32"}, "sdpa", "takes 16-bit types only; a mask keeps the rows"),
        ("a100-80g", QWEN_05B, {"packing": False}, "varlen", "rows one after another, without padding"),
        ("v100-32g", QWEN_05B, {}, "sdpa", "Tesla V100-SXM2-32GB is older than Ampere"),
    ],
)
def test_attention_is_what_the_card_the_type_and_the_model_allow(key, model, precision, implementation, reason):
    attention = plan(key, model=model, train_type="lora", **precision).decisions.attention
    assert attention.value.implementation == implementation
    assert reason in attention.reason
    assert ("mask" in attention.reason) == (implementation == "sdpa" and precision.get("packing", True))


def test_varlen_for_capped_scores_is_refused():
    decisions = plan("a100-80g", model=QWEN_05B, train_type="lora").decisions
    request = TrainRequest(model="m", attn_impl="varlen")
    with pytest.raises(Exception, match="gemma2 caps its attention scores"):
        choose_attention(gpu_named("a100-80g"), GEMMA2, decisions.precision.value, True, request)


@pytest.mark.parametrize(
    ("model", "packages", "enabled", "reason"),
    [
        (QWEN_7B, ("triton",), True, "up to 1.4 times the speed"),
        (QWEN_7B, (), False, "the package triton, which compiling needs, is not installed"),
        (MOE, ("triton",), False, "routed experts change their shapes with every batch"),
    ],
)
def test_layers_are_compiled_where_triton_is_and_shapes_are_fixed(model, packages, enabled, reason):
    software = Software(python="3.12", packages=dict.fromkeys(packages, "1"))
    decision = choose_compile(gpu_named("a100-80g"), model, software, TrainRequest(model="m"))
    assert decision.value.enabled == enabled
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("key", "model", "train_type", "obstacle"),
    [
        ("h100", QWEN_7B, "dora", "DoRA takes the norm of the base's own weights"),
        ("h100", QWEN_7B, "lora", None),
        ("h100", qwen2(2056, 4864, 24, 8, 2), "lora", "dimensions of q_proj"),
        ("h100", QWEN_7B, "qlora", None),
        ("h100", QWEN_7B, "full", None),
        ("h100", MOE, "full", "are no linear layers of their own"),
        ("a100-80g", QWEN_7B, "lora", "NVIDIA A100-SXM4-80GB (Ampere) has no FP8 tensor cores"),
    ],
)
def test_what_stands_against_fp8(key, model, train_type, obstacle):
    kind = "lora" if train_type == "dora" else train_type
    found = fp8_obstacle(gpu_named(key), model, kind, TrainRequest(model="m", use_dora=train_type == "dora"))
    assert found is None if obstacle is None else obstacle in (found or "")


@pytest.mark.parametrize(
    ("wishes", "weights", "compute", "reason"),
    [
        ({"torch_dtype": "float32"}, "fp32", "fp32", "asked for"),
        ({"torch_dtype": "bfloat16", "train_type": "full"}, "bf16", "bf16", "asked for"),
        ({"torch_dtype": "float16", "train_type": "full"}, "fp32", "fp16", "loss scaling needs gradients in FP32"),
    ],
)
def test_a_type_that_is_asked_for_is_taken(wishes, weights, compute, reason):
    precision = plan("a100-80g", model=QWEN_05B, **wishes).decisions.precision
    assert (precision.value.weights, precision.value.compute, precision.source) == (weights, compute, "user")
    assert reason in precision.reason


def test_a_type_asked_for_on_the_cpu_is_the_users_and_a_large_run_is_warned_of():
    decided = plan(device="cpu", torch_dtype="bfloat16", train_type="lora")
    assert (decided.decisions.precision.value.compute, decided.decisions.precision.source) == ("bf16", "user")
    assert "On a CPU this takes long" in " ".join(decided.warnings)
    small = plan(device="cpu", model=QWEN_05B, train_type="lora", max_steps=1)
    assert not small.warnings


def test_float32_runs_at_the_rate_of_tf32_or_of_fp32():
    speeds = {}
    for key in ("a100-80g", "v100-32g"):
        made = plan(key, model=QWEN_05B, train_type="lora", torch_dtype="float32")
        assert made.speed is not None
        speeds[key] = made.speed.tokens_per_second
        assert made.decisions.precision.value.fp32_matmul == ("tf32" if key == "a100-80g" else "ieee")
    assert speeds["a100-80g"] > 2 * speeds["v100-32g"]


def test_the_cards_that_the_table_does_not_know_have_no_speed_and_no_cost():
    whole = machine("a100-80g")
    unknown = replace(whole, gpus=(replace(whole.gpus[0], name="NVIDIA X1"),))
    made = plan_training(unknown, QWEN_7B, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert made.fits
    assert made.speed is made.cost is None
    assert made.decisions.batch.value.micro_batch_size * made.decisions.batch.value.max_length >= 2048


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("delete", "left out"), ("left", "cut on the left"), ("right", "cut on the right"), ("split", "split")],
)
def test_the_plan_says_what_becomes_of_rows_that_are_too_long(strategy, words):
    reason = plan("a10", max_length=1024, truncation_strategy=strategy).decisions.batch.reason
    assert f"1024 tokens, as asked for; longer rows (up to 1500) are {words}" in reason
    long = replace(ALPACA, longest_row_tokens=5000)
    assert "2048 tokens; longer rows (up to 5000) are left out" in plan("a10", dataset=long).decisions.batch.reason


def test_assumed_data_is_warned_of_and_its_length_is_a_guess():
    made = plan("a10", dataset=replace(ALPACA, assumed=True))
    assert "2048 tokens, the data not being measured" in made.decisions.batch.reason
    assert "The data was not measured: 20000 rows of 285 tokens are assumed." in made.warnings


def test_a_short_run_of_another_epoch_count_says_so():
    schedule = plan("a10", num_train_epochs=1.0).decisions.schedule
    assert schedule.reason.startswith("1 pass of ")
    assert (schedule.value.num_train_epochs, schedule.source) == (1.0, "user")


@pytest.mark.parametrize(
    ("wishes", "name", "reason"),
    [
        ({}, "adamw", "fused AdamW; learning rate 0.0001 for lora"),
        ({"optim": "adamw_8bit"}, "adamw_8bit", "adamw_8bit asked for"),
        (
            {"train_type": "full", "torch_dtype": "bfloat16"},
            "adamw",
            "fused AdamW; bf16 weights rounded at random, so that small updates count; learning rate 1e-05 for full",
        ),
    ],
)
def test_the_optimizer_is_the_users_or_fused_adamw(wishes, name, reason):
    optimizer = plan("a100-80g", **wishes).decisions.optimizer
    assert optimizer.value.name == name
    assert optimizer.reason.startswith(reason)


def test_dropout_and_an_old_card_under_cuda_13_are_warned_of():
    whole = machine("v100-32g")
    volta = replace(whole, software=replace(whole.software, torch_cuda="13.0"))
    made = plan_training(volta, QWEN_7B, ALPACA, TrainRequest(model="m", lora_dropout=0.05))
    assert "LoRA dropout keeps a copy" in " ".join(made.warnings)
    assert "torch for CUDA 13.0 has no kernels for Tesla V100-SXM2-32GB" in " ".join(made.warnings)
    assert not plan("v100-32g", train_type="lora").warnings


def _work(made: TrainPlan) -> Workload:
    return Workload(model=made.model, decisions=made.decisions, targets=None)


def test_norms_on_queries_and_capped_scores_keep_more_activations():
    wishes = {"train_type": "lora", "per_device_train_batch_size": 1}
    plain, normed, capped = (
        layer_activation_bytes(_work(plan("a100-80g", model=model, **wishes))) for model in (QWEN_05B, QWEN3, GEMMA2)
    )
    tokens = 2048
    assert normed - plain == 2 * tokens * (QWEN_05B.query_size + QWEN_05B.key_value_size)
    assert capped - plain == 5 * 14 * tokens**2


def test_experts_count_as_wide_as_those_that_a_token_passes():
    made = plan("h200", model=MOE, train_type="lora")
    assert made.fits
    assert made.decisions.compile.value.enabled is False
    assert made.decisions.precision.value.compute == "bf16"
    dense = replace(MOE, moe=None, intermediate_size=8 * 768)
    assert layer_activation_bytes(_work(made)) == layer_activation_bytes(_work(replace(made, model=dense)))


def test_modules_to_save_are_trained_whole_and_counted():
    saved = plan("a100-80g", train_type="lora", modules_to_save=("embed_tokens", "lm_head"))
    weights = 2 * QWEN_7B.embedding_parameters
    assert saved.memory.adapters_bytes > 4 * weights
    assert saved.memory.optimizer_bytes > 8 * weights


def test_gradients_live_twice_where_gpus_exchange_them():
    size = 4 * QWEN_05B.num_parameters
    forced = {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "train_type": "full",
        "strategy": "ddp",
    }
    one, two = (plan(*["a100-80g"] * n, model=QWEN_05B, **forced) for n in (1, 2))
    assert two.memory.gradients_bytes - one.memory.gradients_bytes == size


def test_a_mig_slice_has_its_share_of_the_boards_peak():
    request = TrainRequest(model="m", train_type="qlora")
    board, half = (plan_training(machine_with(name), QWEN_7B, ALPACA, request) for name in ("h100", "h100:mig-4g.40gb"))
    assert board.speed is not None
    assert half.speed is not None
    assert half.speed.tokens_per_second == pytest.approx(board.speed.tokens_per_second * 64 / 132, rel=0.1)
    assert half.speed.mfu == pytest.approx(board.speed.mfu, rel=0.1)


def test_fp8_that_is_refused_is_not_taken():
    assert plan("h100", train_type="lora", fp8=False).decisions.precision.value.compute == "bf16"
    made = plan("h100", train_type="lora", fp8=True)
    assert made.decisions.precision.value.compute == "fp8"
    assert made.decisions.precision.reason.endswith("; FP8 asked for")
    assert made.decisions.precision.source == "user"


def test_logits_that_exist_whole_take_twelve_bytes_each():
    made = plan("h200", train_type="lora", per_device_train_batch_size=1)
    whole = replace(made.decisions, loss=replace(made.decisions.loss, value=LossKernel(kernel="full")))
    targets = resolve_targets(QWEN_7B)
    work = Workload(model=QWEN_7B, decisions=whole, targets=targets)
    memory = estimate_memory(work, made.memory.capacity_bytes, on_gpu=True)
    assert (memory.moment, memory.logits_bytes) == ("forward", 12 * 152064 * 2048)
