"""What is decided for whom, and the reason that is given."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from policy_machines import ALPACA, CPU, QWEN_05B, QWEN_7B, QWEN_32B, busy, machine

from adaptft.errors import MachineError, RequestError
from adaptft.facts import DatasetShape, ModelShape, UnsupportedAccelerator
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest


def plan(*gpus: str, model: ModelShape = QWEN_7B, dataset: DatasetShape = ALPACA, **wishes: object) -> TrainPlan:
    return plan_training(machine(*gpus), model, dataset, TrainRequest(model="qwen-7b", **wishes))


@pytest.mark.parametrize(
    ("gpu", "train_type", "weights", "compute", "storage", "reason"),
    [
        ("t4", "qlora", "fp16", "fp16", "nf4", "Turing has FP16 tensor cores and no bf16"),
        ("v100-32g", "lora", "fp16", "fp16", "fp16", "Volta has FP16 tensor cores"),
        ("a10", "lora", "bf16", "bf16", "bf16", "Ampere multiplies bf16"),
        ("4090", "lora", "bf16", "bf16", "bf16", "Ada multiplies bf16"),
        ("a100-80g", "full", "fp32", "bf16", "fp32", "the weights are trained in FP32"),
        ("h100", "lora", "bf16", "fp8", "fp8", "FP8 matmuls in the frozen base"),
        ("h100", "qlora", "bf16", "fp8", "nf4", "FP8 matmuls in the frozen base"),
        ("b200", "full", "fp32", "bf16", "fp32", "the weights are trained in FP32"),
    ],
)
def test_the_generation_decides_the_precision(gpu, train_type, weights, compute, storage, reason):
    decided = plan(gpu, train_type=train_type)
    precision = decided.decisions.precision
    assert (precision.value.weights, precision.value.compute) == (weights, compute)
    assert decided.decisions.method.value.base_storage == storage
    assert reason in precision.reason
    assert precision.value.loss_scaling == (compute == "fp16")


def test_a_small_model_does_not_take_fp8_on_hopper_and_the_plan_says_why():
    decided = plan("h100", model=QWEN_05B, train_type="lora")
    assert decided.decisions.precision.value.compute == "bf16"
    assert ("FP8", "hidden size 896 gains nothing: quantising costs more than the faster matmuls save") in [
        (r.option, r.reason) for r in decided.rejected
    ]


def test_whole_models_train_in_fp8_where_it_is_asked_for():
    wishes = TrainRequest(model="m", train_type="full", fp8=True, torch_dtype="bfloat16")
    decisions = plan_training(machine("h200"), QWEN_7B, ALPACA, wishes).decisions
    assert (decisions.precision.value.compute, decisions.precision.value.weights) == ("fp8", "bf16")
    assert "FP8 asked for: all three matmuls of each layer" in decisions.precision.reason
    assert (decisions.method.value.base_storage, decisions.method.value.skipped_modules) == ("bf16", ("lm_head",))
    left = plan_training(machine("h200"), QWEN_7B, ALPACA, replace(wishes, fp8=None))
    assert left.decisions.precision.value.compute == "bf16"
    assert any(
        r.option == "FP8" and "the loss of SmolLM2-135M 0.7 % higher after it" in r.reason for r in left.rejected
    )


def test_whole_models_in_fp8_need_less_memory_and_time_than_in_bf16():
    equipped = machine("h200", packages={"triton": "3.6.0"})
    size = {"per_device_train_batch_size": 4, "global_batch_size": 4, "max_length": 2048, "packing": True}
    wishes = TrainRequest(model="m", train_type="full", torch_dtype="bfloat16", gradient_checkpointing=False, **size)
    rows = DatasetShape(num_rows=256, num_tokens=1 << 19, num_trained_tokens=1 << 19, longest_row_tokens=2048)
    in_bf16, in_fp8 = (plan_training(equipped, QWEN_7B, rows, replace(wishes, fp8=fp8)) for fp8 in (None, True))
    assert in_fp8.memory.peak_bytes == pytest.approx(75_451_191_808, rel=0.01)  # measured on an H200
    assert in_fp8.memory.peak_bytes < in_bf16.memory.peak_bytes
    assert in_fp8.speed.step_seconds == pytest.approx(0.445, rel=0.1)  # measured there, 2 of 12 steps under a profiler
    assert in_fp8.speed.tokens_per_second > 1.3 * in_bf16.speed.tokens_per_second


@pytest.mark.parametrize(
    ("gpu", "wishes", "problem"),
    [
        ("t4", {"fp8": True, "train_type": "lora"}, "Turing) has no FP8 tensor cores"),
        ("a100-80g", {"fp8": True, "train_type": "lora"}, "Ampere) has no FP8 tensor cores"),
        ("a100-80g", {"fp8": True, "train_type": "full"}, "Ampere) has no FP8 tensor cores"),
        ("h100", {"fp8": True, "torch_dtype": "float32", "train_type": "lora"}, "FP8 goes with bf16"),
        ("t4", {"torch_dtype": "bfloat16", "train_type": "lora"}, "does not multiply bfloat16"),
        ("a10", {"quant_bits": 4, "train_type": "full"}, "cannot be trained whole"),
        ("t4", {"attn_impl": "varlen", "train_type": "qlora"}, "older than Ampere"),
        ("a10", {"max_length": 40_000, "train_type": "lora"}, "32768 positions"),
        ("a10", {"num_gpus": 2, "train_type": "lora"}, "1 idle GPU is there"),
        (
            "a10",
            {"global_batch_size": 7, "per_device_train_batch_size": 2, "train_type": "lora"},
            "cannot be divided by per_device_train_batch_size 2.",
        ),
        (
            "a10",
            {"global_batch_size": 9, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
            "is not per_device_train_batch_size 2 x gradient_accumulation_steps 4",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(gpu, wishes, problem):
    with pytest.raises(RequestError) as refused:
        plan(gpu, **wishes)
    assert problem in refused.value.problem
    assert refused.value.fix


def test_what_the_user_sets_is_obeyed_and_named_as_theirs():
    decided = plan(
        "a10", train_type="lora", torch_dtype="float16", gradient_checkpointing=True, attn_impl="sdpa",
        torch_compile=False, packing=False, learning_rate=3e-4, lora_rank=64, max_steps=7,
    )  # fmt: skip
    decisions = decided.decisions
    assert decisions.precision.value.compute == "fp16"
    assert decisions.checkpointing.value.layers == 28
    assert decisions.method.value.lora_rank == 64
    assert decisions.schedule.value.max_steps == 7
    for name in ("precision", "checkpointing", "attention", "compile", "batch", "optimizer", "schedule", "method"):
        assert getattr(decisions, name).source == "user", name


def test_a_gpu_that_others_use_is_left_alone_while_one_is_idle():
    two = busy(machine("a100-80g", "a100-80g"), index=0, free_gib=8)
    decided = plan_training(two, QWEN_7B, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert decided.decisions.placement.value.gpu_indices == (1,)
    assert "1 other GPU busy" in decided.decisions.placement.reason


def test_free_memory_decides_and_not_the_total():
    half = busy(machine("a100-80g"), index=0, free_gib=20)
    decided = plan_training(half, QWEN_7B, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert decided.fits
    assert decided.decisions.checkpointing.value.layers > 0
    assert decided.memory.needed_bytes < decided.memory.capacity_bytes


def test_cpus_of_several_machines_have_a_replica_each_where_it_is_asked_for():
    request = TrainRequest(model="m", train_type="lora", device="cpu", nnodes=2, global_batch_size=4)
    decisions = plan_training(machine(), QWEN_05B, ALPACA, request).decisions
    assert decisions.placement.value.nodes == 2
    assert decisions.batch.value.data_parallel_size == 2
    assert decisions.batch.value.global_batch_size == 4


def test_two_equal_gpus_get_a_replica_each_and_keep_the_global_batch():
    decided = plan("4090", "4090", train_type="lora")
    batch = decided.decisions.batch.value
    assert decided.decisions.placement.value.strategy == "ddp"
    assert batch.data_parallel_size == 2
    assert batch.global_batch_size == plan("4090", train_type="lora").decisions.batch.value.global_batch_size


def test_the_step_does_not_depend_on_the_gpu():
    sizes = {
        plan(gpu, train_type="qlora").decisions.batch.value.global_batch_size
        for gpu in ("t4", "a10", "4090", "a100-80g", "h200")
    }
    assert sizes == {16}


def test_a_small_dataset_gets_smaller_steps_and_not_a_run_of_five():
    few = DatasetShape(num_rows=800, num_tokens=150_000, num_trained_tokens=90_000, longest_row_tokens=400)
    decided = plan("a10", dataset=few, train_type="lora")
    assert decided.decisions.schedule.value.max_steps >= 100
    assert "this little data would not last 100 steps" in decided.decisions.batch.reason


def test_where_nothing_fits_the_ways_out_have_numbers():
    decided = plan("a10", model=QWEN_32B, train_type="lora")
    assert not decided.fits
    assert "too much" in decided.rejected[0].reason
    tight = plan("a10", train_type="full")
    ways = [r for r in tight.rejected if r.is_way_out]
    assert [w.option for w in ways][:2] == ["--train_type lora", "--train_type qlora"]
    assert all("GiB" in way.reason for way in ways)


def test_without_a_gpu_the_plan_is_for_the_cpu():
    decided = plan(model=QWEN_05B, train_type="lora")
    assert decided.decisions.placement.value.strategy == "cpu"
    assert decided.decisions.precision.value.compute == "fp32"
    assert decided.decisions.attention.value.implementation == "sdpa"
    assert not decided.decisions.compile.value.enabled


def test_a_cpu_with_bf16_instructions_uses_them():
    quick = dataclasses.replace(machine(), cpu=dataclasses.replace(CPU, flags=("avx512_bf16",)))
    decided = plan_training(quick, QWEN_05B, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert decided.decisions.precision.value.compute == "bf16"
    assert "natively" in decided.decisions.precision.reason


def test_an_amd_machine_is_told_plainly():
    amd = dataclasses.replace(machine(), unsupported=(UnsupportedAccelerator(vendor="amd", name="MI300X", count=8),))
    with pytest.raises(MachineError, match="8 MI300X not supported yet"):
        plan_training(amd, QWEN_7B, ALPACA, TrainRequest(model="m", device="cuda"))


def test_a_quantised_model_is_no_base():
    quantised = dataclasses.replace(QWEN_7B, quantization="awq")
    with pytest.raises(RequestError, match="quantised already"):
        plan("a10", model=quantised, train_type="qlora")


@pytest.mark.parametrize("gpu", ["t4", "a10", "4090", "a100-40g", "a100-80g", "h100", "h200", "l4", "b200"])
@pytest.mark.parametrize("train_type", ["full", "lora", "qlora"])
def test_every_plan_that_fits_stays_under_the_free_memory(gpu, train_type):
    decided = plan(gpu, train_type=train_type)
    assert decided.fits == (decided.memory.needed_bytes <= 0.97 * decided.memory.capacity_bytes)


@pytest.mark.parametrize(
    ("wishes", "packing", "reason"),
    [
        ({}, True, "rows packed"),
        ({"per_device_train_batch_size": 2}, False, "a batch size counts rows (--packing true: packs of them)"),
        ({"gradient_accumulation_steps": 8}, False, "a batch size counts rows"),
        ({"global_batch_size": 16}, False, "a batch size counts rows"),
        ({"global_batch_size": 16, "packing": True}, True, "rows packed"),
        ({"packing": False}, False, "rows not packed, as asked for"),
    ],
)
def test_a_batch_size_from_elsewhere_counts_rows_and_not_packs(wishes, packing, reason):
    batch = plan("a10", train_type="lora", **wishes).decisions.batch
    assert batch.value.packing is packing
    assert reason in batch.reason


def test_a_short_run_has_no_warm_up_that_would_be_all_of_it():
    assert plan("a10", train_type="lora", max_steps=1).decisions.optimizer.value.warmup_steps == 0


def test_a_base_in_fp8_is_rounded_by_the_data_where_a_gpu_has_all_of_it():
    adapters = plan("h200", train_type="lora").decisions.adapters
    assert adapters.value.calibration_tokens == 4096
    assert "the base rounded for what 4096 tokens of the data put into it, layer by layer" in adapters.reason
    with_dropout = plan("h200", train_type="lora", lora_dropout=0.1).decisions.adapters.value
    assert not with_dropout.fused
    for other in (
        plan("h200", train_type="full"),
        plan("h200", train_type="qlora"),
        plan("a100-80g", train_type="lora"),
    ):
        assert other.decisions.adapters.value.calibration_tokens == 0


@pytest.mark.parametrize(
    ("stored", "host_gib", "by_layer"),
    [("bfloat16", 1, True), ("float16", 64, True), ("float16", 8, False), ("float32", 8, False)],
    ids=["mapped from its file", "converted there", "no room there", "nor for another type"],
)
def test_a_base_in_fp8_comes_by_layers_where_the_host_can_hold_it(stored, host_gib, by_layer):
    host = replace(machine("h200"), memory=replace(machine("h200").memory, available_bytes=host_gib * 2**30))
    model = replace(QWEN_7B, stored_dtype=stored)
    made = plan_training(host, model, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert made.decisions.adapters.value.by_layer is by_layer
    assert ("layer by layer" in made.decisions.adapters.reason) is by_layer


def test_tiled_mlps_are_refused_without_the_operator_that_has_them():
    with pytest.raises(RequestError, match="tiled_mlp cannot be had: adapters with dropout"):
        plan("h200", train_type="lora", lora_dropout=0.1, tiled_mlp=True)
