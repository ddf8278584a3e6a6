"""Rows that are not packed are priced as long as they are; memory keeps the longest that they can be."""

from dataclasses import replace

import numpy as np
import pytest
from policy_machines import ALPACA, QWEN_7B, machine

from adaptft.data.tables import length_profile
from adaptft.facts import DatasetShape
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest
from adaptft.training.batches import Collator, MicroBatches

LENGTHS = np.random.default_rng(0).gamma(2.0, 100.0, 4000).astype(int).clip(8, 1500)
MEASURED = DatasetShape(
    num_rows=len(LENGTHS), num_tokens=int(LENGTHS.sum()), num_trained_tokens=int(LENGTHS.sum()) // 2,
    longest_row_tokens=int(LENGTHS.max()), length_profile=length_profile(LENGTHS),
)  # fmt: skip


def plan(gpu="a100-80g", dataset=MEASURED, **wishes):
    return plan_training(machine(gpu), QWEN_7B, dataset, TrainRequest(model="m", train_type="lora", **wishes))


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_longest_of_a_micro_batch_is_what_the_collator_pads_to(size):
    collate = Collator(form="padded", length=2048, with_boundaries=False)
    rows = [{name: np.zeros(n, np.int64) for name in ("input_ids", "labels", "position_ids")} for n in LENGTHS]
    batches = list(MicroBatches(len(rows), size, seed=1))
    padded = np.mean([collate([rows[i] for i in batch])["input_ids"].shape[1] for batch in batches])
    assert MEASURED.mean_longest(size) + 32 == pytest.approx(padded, rel=0.04)


def test_without_a_profile_lengths_are_taken_as_exponentially_spread():
    unknown = replace(MEASURED, length_profile=())
    assert unknown.mean_longest(4) == pytest.approx(MEASURED.mean_row_tokens * (1 + 1 / 2 + 1 / 3 + 1 / 4))


CONFIGS = {
    "a pasted batch size": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "max_length": 2048},
    "padded": {"per_device_train_batch_size": 4, "max_length": 2048, "attn_impl": "sdpa"},
    "one row at a time": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "max_length": 4096},
}


@pytest.mark.parametrize("assumed", [False, True], ids=["measured", "assumed"])
@pytest.mark.parametrize("wishes", CONFIGS.values(), ids=CONFIGS)
def test_speed_counts_the_rows_and_memory_their_bound(wishes, assumed):
    dataset = replace(MEASURED, assumed=assumed)
    decided = plan(dataset=dataset, **wishes)
    batch, speed = decided.decisions.batch.value, decided.speed
    real = batch.global_batch_size * dataset.mean_row_tokens
    assert speed.tokens_per_second * speed.step_seconds == pytest.approx(real, rel=0.01)
    assert speed.total_seconds == pytest.approx(speed.step_seconds * decided.decisions.schedule.value.max_steps)
    longer = plan(dataset=replace(dataset, num_tokens=dataset.num_tokens * 4, length_profile=()), **wishes)
    assert longer.speed.step_seconds > speed.step_seconds, "longer rows take longer"
    assert longer.memory.activations_bytes == decided.memory.activations_bytes, "memory is for the longest that can be"


def test_packed_and_unpacked_rows_take_about_the_same_time_for_the_same_tokens():
    """What a step costs is its tokens: the plans of one data set may not differ eightfold."""
    packed, rows = plan(), plan(per_device_train_batch_size=16, max_length=2048)
    assert rows.speed.total_seconds / packed.speed.total_seconds < 2


def test_hours_on_a_cpu_count_the_rows_too():
    cpu = machine()
    wishes = {"model": "m", "train_type": "lora", "packing": False, "max_length": 4096}
    said = [
        " ".join(plan_training(cpu, QWEN_7B, dataset, TrainRequest(**wishes)).warnings)
        for dataset in (ALPACA, replace(ALPACA, num_tokens=ALPACA.num_tokens * 8))
    ]
    hours = [float(text.split("takes long: ")[1].split(" hours")[0]) for text in said]
    assert hours[1] / hours[0] == pytest.approx(8, rel=0.01)
