"""What a plan warns of: GPUs that stay idle and are paid for, memory planned to the last gigabyte; and wrong names."""

import pytest
from policy_machines import ALPACA, QWEN_7B, machine

from adaptft.errors import RequestError
from adaptft.facts import DatasetShape
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.requests import TrainRequest

FEW = DatasetShape(num_rows=400, num_tokens=20_000, num_trained_tokens=9_000, longest_row_tokens=500)


def plan(where, dataset=ALPACA, **wishes):
    return plan_training(where, QWEN_7B, dataset, TrainRequest(model="m", **{"train_type": "lora"} | wishes))


def said(decided):
    return " ".join(decided.warnings)


def test_gpus_that_are_named_and_not_used_are_said_and_paid_for():
    one, four = (plan(machine_with(name), FEW) for name in ("a100-80g", "4xa100-80g"))
    assert four.decisions.placement.value.num_gpus == 1
    assert "1 of the 4 GPUs is used: a step of 1 sequence does not divide among more" in said(four)
    assert "The cost is that of all 4" in said(four)
    assert four.cost.total_usd == pytest.approx(4 * one.cost.total_usd)
    assert "GPUs" not in said(one)


@pytest.mark.parametrize(
    ("where", "wishes"),
    [(machine_with("4xa100-80g"), {"num_gpus": 1}), (machine(*["a100-80g"] * 4), {})],
    ids=["the user wants one", "a machine that was probed: the others may be somebody's"],
)
def test_gpus_that_nobody_asked_for_are_not_paid_for(where, wishes):
    decided = plan(where, FEW, **wishes)
    assert "The cost is that of all" not in said(decided)
    assert decided.cost.total_usd == pytest.approx(plan(machine_with("a100-80g"), FEW).cost.total_usd)


@pytest.mark.parametrize(
    ("where", "wishes", "tight"),
    [
        (machine_with("4090"), {"max_length": 2048}, "a GPU that is taken to be idle"),
        (machine_with("h100"), {"max_length": 1024}, None),
        (machine("4090"), {"max_length": 2048}, None),
        (machine(host_gib=38), {"max_length": 512}, "the host, which other programs share"),
        (machine(host_gib=96), {"max_length": 512}, None),
    ],
    ids=["assumed and full", "assumed with room", "probed", "a full host", "a roomy host"],
)
def test_memory_that_is_planned_to_the_last_gigabyte_is_warned_of(where, wishes, tight):
    decided = plan(where, **wishes)
    share = decided.memory.needed_bytes / decided.memory.capacity_bytes
    assert decided.fits
    if tight is None:
        assert "Tight" not in said(decided)
    else:
        assert f"Tight: {share:.0%} of the memory of {tight}" in said(decided)


def test_the_way_out_that_the_warning_names_leaves_more_room():
    where = machine_with("4090")
    tight = plan(where, max_length=2048)
    assert "--gradient_checkpointing true leaves more room" in said(tight)
    roomy = plan(where, max_length=2048, gradient_checkpointing=True)
    assert roomy.memory.needed_bytes < tight.memory.needed_bytes


@pytest.mark.parametrize(
    ("name", "problem", "fix"),
    [
        ("mi300x", "adaptft does not train on AMD yet", "NVIDIA"),
        ("cpu", "--gpu cpu names no GPU", "--device cpu"),
        ("CPU", "names no GPU", "Leave --gpu out"),
    ],
)
def test_what_is_no_gpu_of_ours_says_what_it_is(name, problem, fix):
    with pytest.raises(RequestError) as refused:
        machine_with(name)
    assert problem in refused.value.problem
    assert fix in refused.value.fix


@pytest.mark.parametrize("name", ["8xh100", "8 x H100", "8Xh100"])
def test_a_number_before_the_name_says_how_many(name):
    assert len(machine_with(name).gpus) == 8


def test_a_batch_that_is_a_little_too_large_gets_the_largest_that_fits():
    refused = plan(machine_with("4090"), max_length=1024, per_device_train_batch_size=64, packing=True)
    assert not refused.fits
    way = next(way.option for way in refused.rejected if way.is_way_out and "batch_size" in way.option)
    size = int(way.split()[1])
    assert 1 < size < 64
    wishes = {"max_length": 1024, "packing": True, "global_batch_size": 64}
    assert plan(machine_with("4090"), per_device_train_batch_size=size, **wishes).fits
    larger = [other for other in range(size + 1, 64) if 64 % other == 0]
    assert not any(plan(machine_with("4090"), per_device_train_batch_size=other, **wishes).fits for other in larger)
