"""What holds of every training plan: for any GPUs of the table, any model and any wishes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from policy_machines import QWEN_05B, QWEN_7B, QWEN_14B, machine, qwen2

from adaptft.errors import AdaptftError
from adaptft.facts import DatasetShape, ModelShape
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.gpus import GPU_MODELS
from adaptft.policy.placement import OLDEST
from adaptft.policy.search import SAME_SPEED
from adaptft.requests import TrainRequest
from adaptft.units import GiB

KEYS = sorted(key for key, row in GPU_MODELS.items() if row.compute_capability >= OLDEST)
GPUS = st.one_of(
    st.just(()), st.tuples(st.sampled_from(KEYS), st.integers(1, 8)).map(lambda pair: (pair[0],) * pair[1])
)
TYPES = st.sampled_from(["full", "lora", "qlora", None])


@st.composite
def models(draw: st.DrawFn) -> ModelShape:
    if draw(st.booleans()):
        return draw(st.sampled_from([QWEN_05B, QWEN_7B, QWEN_14B]))
    kv, groups = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(1, 8))
    width = 64 * kv * groups
    return qwen2(width, draw(st.integers(1, 5)) * width, draw(st.integers(1, 80)), kv * groups, kv, vocab=32000)


@st.composite
def data(draw: st.DrawFn) -> DatasetShape:
    rows, longest = draw(st.integers(1, 100_000)), draw(st.integers(2, 9000))
    tokens = max(rows * draw(st.integers(2, longest)), longest)
    return DatasetShape(num_rows=rows, num_tokens=tokens, num_trained_tokens=tokens // 2, longest_row_tokens=longest)


WISHES = st.fixed_dictionaries(
    {"train_type": TYPES},
    optional={
        "max_length": st.integers(1, 9000),
        "packing": st.booleans(),
        "per_device_train_batch_size": st.integers(1, 32),
        "gradient_accumulation_steps": st.integers(1, 32),
        "global_batch_size": st.integers(1, 64),
        "num_gpus": st.integers(1, 9),
        "nnodes": st.integers(1, 3),
        "strategy": st.sampled_from(["ddp", "zero2", "fsdp2"]),
        "sequence_parallel_size": st.sampled_from([1, 2, 4]),
        "network_gbps": st.sampled_from([1.0, 400.0]),
        "device": st.sampled_from(["cuda", "cpu"]),
        "gradient_checkpointing": st.booleans(),
        "attn_impl": st.sampled_from(["varlen", "sdpa", "eager"]),
        "torch_dtype": st.sampled_from(["float32", "float16", "bfloat16"]),
        "torch_compile": st.booleans(),
        "fp8": st.booleans(),
        "optim": st.sampled_from(["adamw", "adamw_8bit", "paged_adamw_8bit"]),
        "lora_rank": st.integers(1, 256),
        "max_steps": st.integers(1, 100),
        "eval_strategy": st.sampled_from(["steps", "epoch", "no"]),
        "split_dataset_ratio": st.sampled_from([0.0, 0.1]),
    },
)


def plan(gpus: tuple[str, ...], model: ModelShape, dataset: DatasetShape, wishes: dict[str, Any]) -> TrainPlan | None:
    """The plan, or None where it is refused: with an error of ours, which has a way out, and never with another one."""
    request = TrainRequest(model="m", given=tuple(sorted(wishes)), **wishes)
    try:
        return plan_training(machine(*gpus), model, dataset, request)
    except AdaptftError:
        return None


@settings(max_examples=150, deadline=None)
@given(gpus=GPUS, model=models(), dataset=data(), wishes=WISHES)
def test_every_plan_adds_up_stays_in_its_bounds_and_obeys(gpus, model, dataset, wishes):
    made = plan(gpus, model, dataset, wishes)
    if made is None:
        return
    decisions, memory = made.decisions, made.memory
    batch, checkpointing, placement = decisions.batch.value, decisions.checkpointing.value, decisions.placement.value
    product = batch.micro_batch_size * batch.gradient_accumulation_steps * batch.data_parallel_size
    assert product == batch.global_batch_size
    assert batch.data_parallel_size == placement.data_parallel_size
    assert placement.data_parallel_size * placement.sequence_parallel_size <= max(len(gpus), 1) * placement.nodes
    assert made.speed is None or 0 <= made.speed.waiting_seconds <= made.speed.step_seconds
    assert made.speed is None or (made.speed.communication_seconds > 0) == (placement.num_gpus > 1)
    assert 0 <= checkpointing.layers <= checkpointing.of == model.num_layers
    assert made.fits == (memory.needed_bytes <= 0.97 * memory.capacity_bytes)
    assert (made.speed is None) == (not made.fits or placement.strategy == "cpu")
    assert decisions.schedule.value.max_steps >= 1
    assert all(getattr(decisions, name).reason for name in decisions.__slots__)
    assert made.fits or made.rejected
    _check_obedience(made, wishes)


def _check_obedience(made: TrainPlan, wishes: dict[str, Any]) -> None:
    decisions = made.decisions
    batch, placement = decisions.batch.value, decisions.placement.value
    found = {
        "max_length": batch.max_length,
        "packing": batch.packing,
        "per_device_train_batch_size": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
        "global_batch_size": batch.global_batch_size,
        "num_gpus": len(placement.gpu_indices),
        "nnodes": placement.nodes,
        "strategy": wishes.get("strategy") if placement.num_gpus == 1 else placement.strategy,
        "sequence_parallel_size": placement.sequence_parallel_size,
        "device": "cpu" if placement.strategy == "cpu" else "cuda",
        "attn_impl": decisions.attention.value.implementation,
        "torch_dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[decisions.precision.value.autocast],
        "torch_compile": decisions.compile.value.enabled,
        "fp8": decisions.precision.value.compute == "fp8",
        "optim": decisions.optimizer.value.name,
        "lora_rank": decisions.method.value.lora_rank,
        "max_steps": decisions.schedule.value.max_steps,
        "split_dataset_ratio": decisions.schedule.value.held_out_ratio,
        "train_type": decisions.method.value.train_type,
    }
    for name in wishes.keys() & found.keys():
        assert wishes[name] in (None, found[name]), name
    layers = decisions.checkpointing.value
    if "gradient_checkpointing" in wishes:
        assert layers.layers == (layers.of if wishes["gradient_checkpointing"] else 0)


@settings(max_examples=80, deadline=None)
@given(
    key=st.sampled_from(KEYS),
    model=models(),
    dataset=data(),
    train_type=TYPES,
    free=st.tuples(st.floats(1, 100), st.floats(1, 100)).map(sorted),
)
def test_more_free_memory_never_makes_a_plan_of_the_same_quality_slower(key, model, dataset, train_type, free):
    """Of the same quality: FP32 weights, where they fit, are better than bf16 ones, and slower."""
    less, more = (_with_free(key, gib, model, dataset, train_type) for gib in free)
    if less.fits:
        assert more.fits
    assume(less.fits and _quality(less) == _quality(more))
    assert less.speed is not None
    assert more.speed is not None
    assert more.speed.step_seconds <= less.speed.step_seconds * SAME_SPEED * 1.0001


def _with_free(key: str, gib: float, model: ModelShape, dataset: DatasetShape, train_type: Any) -> TrainPlan:
    whole = machine(key)
    total = max(int(gib * GiB), whole.gpus[0].memory_total_bytes)
    gpu = replace(whole.gpus[0], memory_total_bytes=total, memory_free_bytes=int(gib * GiB))
    request = TrainRequest(model="m", train_type=train_type)
    return plan_training(replace(whole, gpus=(gpu,)), model, dataset, request)


def _quality(made: TrainPlan) -> tuple[object, ...]:
    method = made.decisions.method.value
    return method.train_type, method.base_storage, made.decisions.optimizer.value.name
