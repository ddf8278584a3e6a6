"""Memory of shards: worked numbers, what each strategy keeps, and what is never sharded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_7B, QWEN_32B, qwen2

from adaptft.facts import ModelShape
from adaptft.plans import Placement
from adaptft.policy.activations import saved_activations
from adaptft.policy.assumed import machine_with
from adaptft.policy.attempts import attempts, rows_are_too_long
from adaptft.policy.candidate import Candidate
from adaptft.policy.memory import estimate_memory, step_memory
from adaptft.policy.states import states
from adaptft.policy.storage import gathered, stored
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest
from adaptft.units import GiB

P = 7_615_616_512
TABLE = 152_064 * 3_584
"""The embedding's weights, and as many of the head."""
LAYER = (P - 2 * TABLE) // 28


def best(model: ModelShape = QWEN_7B, gpu: str = "8xh200", **wishes: object) -> Candidate:
    """The first candidate of the first attempt: FP32 weights and AdamW for whole models."""
    wishes = {"train_type": "full", "per_device_train_batch_size": 1, "max_length": 2048, "packing": True} | wishes
    return next(attempts(machine_with(gpu), model, ALPACA, TrainRequest(model="m", **wishes)))[0]


def work(strategy: str, gpus: int = 8, model: ModelShape = QWEN_7B, sharing: int = 1, **wishes: object) -> Workload:
    """A run of one sequence a GPU, every layer checkpointed, placed by hand."""
    found = best(model, gradient_checkpointing=True, global_batch_size=8, **wishes)
    placement = Placement(strategy=strategy, gpu_indices=tuple(range(gpus)), sequence_parallel_size=sharing)
    decisions = replace(found.decisions, placement=replace(found.decisions.placement, value=placement))
    targets = None if found.decisions.method.value.train_type == "full" else resolve_targets(model)
    return Workload(model=model, decisions=decisions, targets=targets)


def test_a_whole_7b_in_fp32_on_eight_ranks():
    assert QWEN_7B.num_parameters == P
    held = states(work("fsdp2"))
    assert held.weights == 4 * P // 8
    assert held.optimizer == 8 * P // 8
    assert held.gradients == 4 * P // 8
    assert held.passing_weights == pytest.approx(2 * 2 * LAYER + 2 * TABLE, rel=1e-6)
    assert held.passing_gradients == pytest.approx((2 + 4) * LAYER, rel=1e-6)  # once more in FP32, to be added up
    assert held.ending == (2 * TABLE, 4 * P // 8 + (2 + 4) * TABLE)
    whole = sum((held.weights, held.optimizer, held.gradients))
    assert whole == pytest.approx(15.23e9, rel=1e-3)  # 16 bytes a parameter over eight ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_what_is_at_rest_shrinks_with_the_ranks(ranks):
    held = states(work("fsdp2", ranks))
    assert held.weights + held.optimizer + held.gradients == pytest.approx(16 * P / ranks, abs=8)


def test_zero2_keeps_every_layer_gathered_and_needs_as_much_more():
    sharded, kept = (step_memory(work(strategy), 0, on_gpu=True) for strategy in ("fsdp2", "zero2"))
    assert states(work("zero2")).weights == states(work("fsdp2")).weights
    more = states(work("zero2")).passing_weights - states(work("fsdp2")).passing_weights
    assert more == pytest.approx((28 - 2) * 2 * LAYER, rel=1e-6)
    assert sharded.peak_bytes < kept.peak_bytes < sharded.peak_bytes + more
    assert step_memory(work("ddp"), 0, on_gpu=True).peak_bytes > 3 * kept.peak_bytes


def test_zero3_is_another_word_for_fsdp2():
    assert states(work("zero3")) == states(work("fsdp2"))


def test_a_replica_copies_its_weights_and_a_shard_does_not():
    assert states(work("ddp")).passing_weights == 2 * P
    assert states(work("ddp")).gradients == 2 * 4 * P


def test_a_frozen_16_bit_base_is_sharded_and_gathered_in_16_bit():
    lora = work("fsdp2", train_type="lora", fp8=False)
    held, parts = states(lora), gathered(lora)
    assert held.weights == 2 * P // 8
    assert parts.total == 2 * P
    assert parts.layer == pytest.approx(2 * LAYER, rel=1e-6)
    assert held.ending[1] == 0
    assert held.gradients == states(work("ddp", train_type="lora", fp8=False)).gradients // 16  # no buckets either


def test_4_bit_weights_travel_packed_and_their_scales_stay_whole_on_each_rank():
    qlora = work("fsdp2", train_type="qlora")
    whole = stored(QWEN_7B, qlora.precision, qlora.method)
    converted = P - 2 * TABLE - 28 * (2 * 3584 + 3584 + 2 * 512) - 3584  # all but tables, norms and biases
    assert whole.converted == 0.5 * converted
    assert whole.scales == converted * (1 / 64 + 4 / (64 * 256))
    held = states(qlora)
    assert held.weights == int((whole.plain + whole.converted) / 8 + whole.scales)
    assert gathered(qlora).layers == pytest.approx(0.5 * converted, rel=0.001)


def test_fp8_weights_travel_with_the_scales_of_their_rows():
    fp8 = work("fsdp2", train_type="lora")
    assert fp8.method.base_storage == "fp8"
    assert gathered(fp8).layers == pytest.approx(P - 2 * TABLE, rel=0.002)
    assert states(fp8).weights == pytest.approx((P + 2 * TABLE) / 8, rel=0.002)


def test_an_fp8_base_needs_room_to_load_where_it_comes_whole():
    ddp = work("ddp", train_type="lora")
    kernels = ddp.decisions.adapters
    assert kernels.value.by_layer
    whole = replace(kernels, value=replace(kernels.value, by_layer=False))
    all_at_once = estimate_memory(replace(ddp, decisions=replace(ddp.decisions, adapters=whole)), 0, on_gpu=True)
    assert all_at_once.moment == "load"
    assert all_at_once.weights_bytes > 2 * P
    by_layer = estimate_memory(ddp, 0, on_gpu=True)
    assert by_layer.peak_bytes < 1.4 * (P + 2 * TABLE), "in FP8, embedding and head in 16 bit, and one layer more"
    assert estimate_memory(work("fsdp2", train_type="lora"), 0, on_gpu=True).moment != "load"


def test_sharded_fp8_weights_are_never_kept_a_second_time():
    made = best(QWEN_32B, "2xh100", train_type="lora", strategy="fsdp2")
    assert made.decisions.adapters.value.transposed_copy is False


def test_a_table_that_is_both_ends_is_gathered_once_and_for_all():
    tied = work("fsdp2", model=qwen2(1536, 8960, 28, 12, 2, vocab=151_936, tie=True))
    parts = gathered(tied)
    assert (parts.embedding, parts.head) == (0, 2 * 151_936 * 1536)
    assert parts.total == 2 * tied.model.num_parameters


def test_ranks_that_share_rows_have_their_part_of_the_activations():
    alone, shared = (saved_activations(work("fsdp2", 2, sharing=size)) for size in (1, 2))
    assert 0 < shared == alone // 2
    assert states(work("fsdp2", 2, sharing=2)) == states(work("fsdp2", 2))
    assert work("fsdp2", 8, sharing=4).device_tokens == 2048 // 4


def test_rows_are_too_long_only_where_shorter_ones_would_fit():
    memory = step_memory(work("fsdp2"), 0, on_gpu=True)
    rows = memory.activations_bytes + memory.logits_bytes + memory.workspace_bytes
    room = (memory.needed_bytes - rows) / 0.97
    assert rows_are_too_long(replace(memory, capacity_bytes=int(room + 1)))
    assert not rows_are_too_long(replace(memory, capacity_bytes=int(room * 0.99)))
    assert not rows_are_too_long(replace(memory, capacity_bytes=200 * GiB))
