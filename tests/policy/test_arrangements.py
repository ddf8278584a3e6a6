"""Which GPUs are taken and what each of them keeps: chosen by fit and time, or as the user says; each with a reason."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_05B, QWEN_7B, QWEN_14B, QWEN_32B, busy, machine, qwen2

from adaptft.errors import MachineError, RequestError
from adaptft.facts import DatasetShape, MigSlice, ModelShape
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.requests import TrainRequest

QWEN_72B = qwen2(8192, 29568, 80, 64, 8)
LLAMA2_70B = qwen2(8192, 28672, 80, 64, 8, vocab=32000)
FEW = DatasetShape(num_rows=300, num_tokens=20_000, num_trained_tokens=9_000, longest_row_tokens=500)


def plan(gpus: str, model: ModelShape = QWEN_7B, dataset: DatasetShape = ALPACA, **wishes: object) -> TrainPlan:
    return plan_training(machine_with(gpus), model, dataset, TrainRequest(model="m", **wishes))


def why_not(made: TrainPlan, option: str) -> str:
    return next(rejected.reason for rejected in made.rejected if rejected.option == option)


@pytest.mark.parametrize(
    ("gpus", "model", "train_type", "strategy"),
    [
        ("2xa10", QWEN_7B, "lora", "ddp"),
        ("2xa10", QWEN_14B, "lora", "fsdp2"),
        ("2xa10", QWEN_14B, "qlora", "ddp"),
        ("4x4090", QWEN_7B, "lora", "ddp"),
        ("2xa6000", LLAMA2_70B, "qlora", "ddp"),
        ("2xl40s", LLAMA2_70B, "qlora", "ddp"),
        ("2xl40s", QWEN_72B, "qlora", "fsdp2"),
        ("2xh200", QWEN_05B, "full", "ddp"),
        ("2xh200", QWEN_7B, "full", "fsdp2"),
        ("2xh200", QWEN_14B, "full", "fsdp2"),
        ("8xa100-80g", QWEN_72B, "lora", "fsdp2"),
        ("8xa100-80g", QWEN_72B, "qlora", "ddp"),
    ],
)
def test_replicas_where_they_fit_and_shards_where_they_do_not(gpus, model, train_type, strategy):
    made = plan(gpus, model, train_type=train_type)
    placement = made.decisions.placement
    assert made.fits
    assert (placement.value.strategy, placement.source) == (strategy, "policy")
    assert placement.value.num_gpus == len(machine_with(gpus).gpus)
    if strategy == "fsdp2":
        assert placement.reason.startswith("weights, gradients and optimizer states sharded over")
        assert "too much" in why_not(made, f"ddp over {placement.value.num_gpus} GPUs") or "slower" in why_not(
            made, f"ddp over {placement.value.num_gpus} GPUs"
        )
        assert why_not(made, "layer_split") == "one GPU works while the others wait: for inference, not for training"


def test_a_70b_in_4_bit_fits_two_cards_of_48_gb_and_with_short_rows_two_of_24_gb():
    assert plan("2xa6000", LLAMA2_70B, train_type="qlora").fits
    short = plan("2x4090", LLAMA2_70B, train_type="qlora", max_length=512)
    assert (short.decisions.placement.value.strategy, short.fits) == ("fsdp2", True)
    two, four = (plan(f"{count}x3090", QWEN_72B, train_type="qlora") for count in (2, 4))
    assert (two.fits, four.fits) == (False, True)
    assert any(way.option == "--gpu 3090 --gpus 4" for way in two.rejected if way.is_way_out)


def test_a_whole_7b_keeps_fp32_weights_and_states_where_shards_have_room_for_them():
    alone, eight = (plan(gpus, train_type="full") for gpus in ("a100-80g", "8xa100-80g"))
    assert (alone.decisions.precision.value.weights, alone.decisions.optimizer.value.name) == ("fp32", "adamw_8bit")
    assert (eight.decisions.precision.value.weights, eight.decisions.optimizer.value.name) == ("fp32", "adamw")
    assert eight.decisions.placement.value.strategy == "fsdp2"


def test_where_no_kind_is_named_gathering_16_bits_and_whole_4_bit_bases_are_weighed_by_time():
    slow = plan("2x4090", QWEN_14B)
    assert (slow.decisions.method.value.train_type, slow.decisions.placement.value.strategy) == ("qlora", "ddp")
    assert "slower" in why_not(slow, "lora, fsdp2 over 2 GPUs")
    fast = plan("8xa100-40g", QWEN_32B)
    assert (fast.decisions.method.value.train_type, fast.decisions.placement.value.strategy) == ("lora", "fsdp2")
    assert plan("a10", QWEN_14B).decisions.method.value.train_type == "qlora"


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "fsdp2"])
@pytest.mark.parametrize("train_type", ["full", "lora"])
def test_a_strategy_that_is_asked_for_is_taken(strategy, train_type):
    made = plan("2xh200", QWEN_05B, train_type=train_type, strategy=strategy)
    assert (made.decisions.placement.value.strategy, made.decisions.placement.source) == (strategy, "user")
    assert not any(rejected.option.startswith(("ddp", "zero2", "fsdp2", "1 GPU")) for rejected in made.rejected)


def test_who_asks_for_shards_gets_all_gpus_and_a_step_that_feeds_them():
    usual, sharded = (plan("4xa100-80g", dataset=FEW, train_type="lora", strategy=name) for name in ("ddp", "fsdp2"))
    assert usual.decisions.placement.value.num_gpus == 1
    assert sharded.decisions.placement.value.num_gpus == sharded.decisions.batch.value.global_batch_size == 4


def test_over_one_gpu_there_is_nothing_to_shard():
    placement = plan("a100-80g", train_type="lora", strategy="fsdp2").decisions.placement
    assert placement.value.strategy == "single"
    assert "over one GPU there is nothing to shard" in placement.reason


def test_small_steps_grow_where_only_shards_on_more_gpus_fit():
    made = plan("8xa100-80g", QWEN_14B, FEW, train_type="full")
    assert made.fits
    assert (made.decisions.placement.value.num_gpus, made.decisions.batch.value.global_batch_size) == (8, 8)
    assert any("1 GPU" in rejected.option for rejected in made.rejected)
    fixed = plan("8xa100-80g", QWEN_14B, FEW, train_type="full", global_batch_size=1)
    assert not fixed.fits


@pytest.mark.parametrize(
    ("wishes", "problem", "fix"),
    [
        ({"strategy": "fsdp2", "optim": "adamw_8bit"}, "states in 8 bit cannot be sharded", "--optim adamw"),
        ({"sequence_parallel_size": 2, "optim": "adamw_8bit"}, "states in 8 bit cannot be sharded", "--strategy ddp"),
        ({"sequence_parallel_size": 2, "strategy": "ddp"}, "which shards weights as well", "--strategy fsdp2"),
        ({"sequence_parallel_size": 3}, "rows are shared by 2, 4 or 8 GPUs", "Use one that does"),
        ({"sequence_parallel_size": 4}, "whose number divides its GPUs (2 usable)", "leave it out"),
        ({"sequence_parallel_size": 2, "packing": True}, "a row may hold one document only", "--packing false"),
        ({"sequence_parallel_size": 2, "attn_impl": "varlen"}, "the ring stands on SDPA", "--attn_impl sdpa"),
        ({"device": "cpu", "strategy": "fsdp2"}, "device cpu and strategy fsdp2 contradict", "Leave one"),
        ({"nnodes": 0}, "nnodes 0 is out of range", "above 0"),
        ({"network_gbps": -1.0}, "network_gbps -1 is out of range", "above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(wishes, problem, fix):
    with pytest.raises(RequestError) as refused:
        plan("2xh200", train_type="full", **wishes)
    assert problem in refused.value.problem
    assert fix in refused.value.fix


@pytest.mark.parametrize("wish", [{"strategy": "fsdp2"}, {"nnodes": 2}, {"sequence_parallel_size": 2}])
def test_gpus_that_are_not_there_cannot_be_asked_for(wish):
    with pytest.raises(MachineError, match="A GPU is asked for: no GPU on this machine"):
        plan_training(machine(), QWEN_05B, ALPACA, TrainRequest(model="m", **wish))


def test_4_bit_weights_in_shards_do_not_multiply_in_fp8():
    with pytest.raises(RequestError, match="fp8 and shards of 4-bit weights contradict each other"):
        plan("2xh100", train_type="qlora", fp8=True, strategy="fsdp2")
    whole, shards = (plan("2xh100", train_type="qlora", strategy=name).decisions for name in ("ddp", "fsdp2"))
    assert (whole.precision.value.compute, shards.precision.value.compute) == ("fp8", "bf16")
    assert (whole.adapters.value.fused, shards.adapters.value.fused) == (True, False)
    assert (
        shards.adapters.reason == "fused operators join weights, which would be whole on every GPU: PEFT's own layers"
    )


def test_8_bit_states_are_never_sharded():
    made = plan("2x4090", QWEN_7B, train_type="full", optim="adamw_8bit")
    assert made.decisions.placement.value.strategy in ("ddp", "single")


def test_cards_that_nobody_knows_make_replicas_where_they_fit_and_shards_where_not():
    four = machine_with("4xl40s")
    unknown = replace(four, gpus=tuple(replace(gpu, name="NVIDIA X1") for gpu in four.gpus))
    small, large = (
        plan_training(unknown, model, ALPACA, TrainRequest(model="m", train_type="full"))
        for model in (QWEN_05B, QWEN_7B)
    )
    assert small.decisions.placement.value.strategy == "ddp"
    assert large.decisions.placement.value.strategy == "fsdp2"
    assert small.speed is large.speed is None


def test_mig_slices_stay_alone_on_many_machines_too():
    whole = machine("a100-80g", "a100-80g")
    gpus = tuple(replace(gpu, mig=MigSlice(profile="3g.40gb", parent=gpu.name)) for gpu in whole.gpus)
    slices = replace(whole, gpus=gpus)
    request = TrainRequest(model="m", train_type="lora")
    assert plan_training(slices, QWEN_05B, ALPACA, request).decisions.placement.value.strategy == "single"
    with pytest.raises(RequestError, match="a run cannot span MIG slices"):
        plan_training(slices, QWEN_05B, ALPACA, replace(request, nnodes=2))


def test_busy_gpus_are_left_out_of_shards():
    eight = busy(machine_with("8xa100-80g"), 3, 10)
    placement = plan_training(eight, QWEN_14B, ALPACA, TrainRequest(model="m", train_type="full")).decisions.placement
    assert 3 not in placement.value.gpu_indices
    assert placement.value.strategy == "fsdp2"
    assert "1 other GPU busy or of another model" in placement.reason


def test_many_machines_use_all_their_gpus_and_cost_as_much():
    one, two = (plan("8xh100", train_type="full", nnodes=nodes, max_steps=10) for nodes in (None, 2))
    placement = two.decisions.placement
    assert (placement.value.nodes, placement.value.num_gpus, placement.source) == (2, 16, "user")
    assert (
        "between machines InfiniBand NDR, 400 Gbit/s for each GPU, assumed without --network_gbps" in placement.reason
    )
    rate = two.cost.total_usd / two.speed.total_seconds
    assert rate == pytest.approx(2 * one.cost.total_usd / one.speed.total_seconds)
    slow = plan("8xh100", train_type="full", nnodes=2, max_steps=10, network_gbps=10.0)
    assert slow.speed.step_seconds > 5 * two.speed.step_seconds
    assert "GPUs wait for each other" in " ".join(slow.warnings)
    many = plan("8xh100", train_type="full", nnodes=16).decisions
    assert many.batch.value.global_batch_size == many.placement.value.num_gpus == 128


def test_machines_of_one_gpu_each_make_replicas_too():
    made = plan("h100", train_type="lora", nnodes=4).decisions.placement
    assert (made.value.strategy, made.value.num_gpus, made.value.gpu_indices) == ("ddp", 4, (0,))
    assert "a replica on each of 4 x 1 NVIDIA H100 80GB HBM3" in made.reason


LONG = {"train_type": "lora", "max_length": 32768, "tiled_mlp": False}


def test_rows_that_fit_no_gpu_are_shared_by_as_few_as_it_takes():
    made = plan("2xa10", **LONG)
    placement = made.decisions.placement.value
    assert made.fits
    assert (placement.strategy, placement.sequence_parallel_size, placement.num_gpus) == ("fsdp2", 2, 2)
    assert placement.data_parallel_size == made.decisions.batch.value.data_parallel_size == 1
    assert made.decisions.placement.reason.startswith("2 GPUs share each row's tokens; weights")
    assert "of 22.1 GiB free" in made.rejected[0].reason


def test_shared_rows_hold_one_document_and_meet_in_a_ring():
    shared = plan("2xh200", sequence_parallel_size=2, **LONG).decisions
    assert shared.attention.value.implementation == "sdpa"
    assert shared.attention.reason.startswith("a ring over the GPUs that share a row")
    assert shared.batch.value.packing is False
    assert "rows not packed, since GPUs share each of them" in shared.batch.reason


def test_rows_that_fit_one_gpu_are_shared_only_where_that_is_asked_for():
    assert plan("2xh200", **LONG).decisions.placement.value.sequence_parallel_size == 1
    asked = plan("2xh200", sequence_parallel_size=2, **LONG).decisions.placement
    assert (asked.value.sequence_parallel_size, asked.source) == (2, "user")
    assert not plan("2xa10", sequence_parallel_size=1, **LONG).fits


def test_one_card_that_is_too_small_for_its_rows_is_told_how_many_are_not():
    alone = plan("a10", **LONG)
    ways = {way.option: way.reason for way in alone.rejected if way.is_way_out}
    assert not alone.fits
    assert ways["--gpu a10 --gpus 2"].endswith("fsdp2 over 2 GPUs, 2 to a row")


def test_weights_that_do_not_fit_are_no_reason_to_share_rows():
    made = plan("2xa10", QWEN_72B, train_type="qlora", max_length=512)
    assert not made.fits
    assert not any("to a row" in rejected.option for rejected in made.rejected)


def test_idle_gpus_beside_long_rows_are_offered_a_share_of_them():
    made = plan("2xh200", dataset=FEW, **LONG)
    assert made.decisions.placement.value.num_gpus == 1
    assert "--sequence_parallel_size 2 shares its rows" in " ".join(made.warnings)


@pytest.mark.parametrize("gpus", ["8xh100", "8xl4", "2xa10"])
@pytest.mark.parametrize("model", [QWEN_7B, QWEN_72B], ids=["7B", "72B"])
def test_every_plan_of_several_gpus_is_made_in_time(gpus, model):
    begin = time.process_time()
    for train_type in ("full", "lora", "qlora"):
        plan(gpus, model, train_type=train_type, global_batch_size=256)
    assert time.process_time() - begin < 12  # 6 on a core whose other thread is idle
