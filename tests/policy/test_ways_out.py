"""Where nothing fits: each way out fits when it is taken; what a plan did not take has a number."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_7B, QWEN_14B, QWEN_32B, machine, qwen2

from adaptft.facts import ModelShape
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.requests import TrainRequest

QWEN_72B = qwen2(8192, 29568, 80, 64, 8)
CASES = {
    "whole 7B on an A10": ("a10", QWEN_7B, {"train_type": "full"}),
    "32B on an A100": ("a100-40g", QWEN_32B, {"train_type": "lora"}),
    "long rows": ("a10", QWEN_7B, {"train_type": "lora", "max_length": 32768, "tiled_mlp": False}),
    "no checkpointing": ("a10", QWEN_7B, {"train_type": "lora", "gradient_checkpointing": False, "max_length": 4096}),
    "large micro-batches": ("a10", QWEN_7B, {"train_type": "lora", "per_device_train_batch_size": 32}),
    "two cards": ("2x4090", QWEN_32B, {"train_type": "lora"}),
    "replicas that are asked for": ("4xa100-80g", QWEN_14B, {"train_type": "full", "strategy": "ddp"}),
    "one GPU that is asked for": ("4xl40s", QWEN_7B, {"train_type": "full", "num_gpus": 1}),
    "whole 72B on eight cards": ("8xh100", QWEN_72B, {"train_type": "full"}),
    "bf16 is asked for": ("t4", QWEN_7B, {"train_type": "lora", "torch_dtype": "float16"}),
}


def planned(gpu: str, model: ModelShape, wishes: dict) -> TrainPlan:
    return plan_training(machine_with(gpu), model, ALPACA, TrainRequest(model="m", **wishes))


def taken(option: str, gpu: str, wishes: dict) -> tuple[str, dict]:
    """The way out as a user would type it: its options replace those there were."""
    words = shlex.split(option)
    found = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    gpu = found.pop("gpu", gpu)
    gpu = f"{found.pop('gpus')}x{gpu}" if "gpus" in found else gpu
    if "per_device_train_batch_size" in found:
        wishes = {k: v for k, v in wishes.items() if k != "gradient_accumulation_steps"}
    read = {k: v == "true" if v in ("true", "false") else int(v) if v.isdigit() else v for k, v in found.items()}
    return gpu, wishes | read


@pytest.mark.parametrize("case", CASES)
def test_every_way_out_fits_when_it_is_taken(case):
    gpu, model, wishes = CASES[case]
    refused = planned(gpu, model, wishes)
    ways = [rejected for rejected in refused.rejected if rejected.is_way_out]
    assert not refused.fits
    assert ways
    for way in ways:
        assert planned(*taken(way.option, gpu, wishes)[:1], model, taken(way.option, gpu, wishes)[1]).fits, way
        assert way.reason.startswith("needs ")


def options(case: str) -> list[str]:
    return [rejected.option for rejected in planned(*CASES[case]).rejected if rejected.is_way_out]


def test_the_ways_out_are_wishes_on_this_machine_and_the_smallest_card():
    assert options("whole 7B on an A10") == [
        "--train_type lora", "--train_type qlora", "--gpu a6000", "--gpu a10 --gpus 4",
    ]  # fmt: skip
    assert options("large micro-batches")[0] == "--per_device_train_batch_size 16 --global_batch_size 32"
    assert options("no checkpointing")[0] == "--gradient_checkpointing true"
    assert options("long rows")[:2] == ["--tiled_mlp true", "--train_type qlora"]
    assert [option for option in options("long rows") if option.startswith("--max_length")] == ["--max_length 8192"]
    assert any(option.endswith("--gpus 2") for option in options("two cards"))
    assert options("replicas that are asked for")[0] == "--strategy fsdp2"
    assert options("one GPU that is asked for")[0] == "--num_gpus 2"
    assert options("whole 72B on eight cards")[-1] == "--nnodes 2"


def test_a_card_that_cannot_do_what_is_asked_is_no_way_out():
    small = planned("4060", QWEN_14B, {"train_type": "qlora", "torch_dtype": "bfloat16"})
    cards = [r.option for r in small.rejected if r.option.startswith("--gpu")]
    assert cards == ["--gpu 3090", "--gpu 4060 --gpus 4"]  # not a T4 or V100, which are smaller and have no bf16


def test_where_no_card_is_large_enough_none_is_named():
    ways = [r.option for r in planned("h100", QWEN_72B, {"train_type": "full"}).rejected if r.is_way_out]
    assert ways == ["--train_type lora", "--train_type qlora"]  # layer by layer, FP8 just fits


def test_the_hardest_request_is_answered_in_time():
    begin = time.process_time()
    assert not planned("8x2080ti", QWEN_72B, {"train_type": "full", "global_batch_size": 1024}).fits
    assert time.process_time() - begin < 4  # 2 on a core whose other thread is idle


def test_who_wants_the_cpu_is_told_of_no_card():
    small = replace(machine(), memory=replace(machine().memory, total_bytes=4 * 2**30, available_bytes=2**30))
    request = TrainRequest(model="m", train_type="full", device="cpu")
    asked = plan_training(small, QWEN_7B, ALPACA, request)
    assert not any(r.is_way_out for r in asked.rejected)
    free = plan_training(small, QWEN_7B, ALPACA, replace(request, device=None))
    assert [r.option for r in free.rejected if r.is_way_out] == ["--gpu a6000"]


def test_what_is_checkpointed_says_how_much_was_missing():
    tight = planned("a100-pcie-40g", QWEN_7B, {"train_type": "lora", "max_length": 8192})
    assert tight.decisions.checkpointing.value.layers
    reasons = {rejected.option: rejected.reason for rejected in tight.rejected}
    assert "GiB too much" in reasons["bf16 without checkpointing"]
    asked = planned("a100-pcie-40g", QWEN_7B, {"train_type": "lora", "gradient_checkpointing": True})
    assert all("without checkpointing" not in rejected.option for rejected in asked.rejected)


@pytest.mark.parametrize(
    ("gpu", "wishes", "reason"),
    [
        ("l40s", {}, "its gain is not measured on Ada; --fp8 true takes it"),
        ("h100", {"fp8": False}, "not wanted"),
        ("h100", {"torch_dtype": "bfloat16"}, "bfloat16 is asked for"),
    ],
)
def test_the_plan_says_why_there_is_no_fp8(gpu, wishes, reason):
    made = planned(gpu, QWEN_7B, {"train_type": "lora", **wishes})
    assert ("FP8", reason) in [(rejected.option, rejected.reason) for rejected in made.rejected]
