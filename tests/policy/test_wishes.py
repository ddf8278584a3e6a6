"""Wishes that cannot be met, and wishes that contradict each other: refused, or obeyed, or warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_05B, QWEN_7B, QWEN_32B, machine

from adaptft.errors import DataError, MachineError, MissingPackage, RequestError
from adaptft.facts import DatasetShape, Machine, MigSlice
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.requests import TrainRequest

FEW = DatasetShape(num_rows=40, num_tokens=8_000, num_trained_tokens=4_000, longest_row_tokens=300)
ONE = DatasetShape(num_rows=1, num_tokens=100, num_trained_tokens=50, longest_row_tokens=100)
WITHOUT_BITSANDBYTES = {"triton": "3.6.0"}


def plan(*gpus: str, on: Machine | None = None, model=QWEN_7B, dataset: DatasetShape = ALPACA, **wishes) -> TrainPlan:
    request = TrainRequest(model="m", given=tuple(sorted(wishes)), **wishes)
    return plan_training(on or machine(*gpus), model, dataset, request)


def mig(*free_gib: float) -> Machine:
    """Slices of one H100, so much of each free."""
    whole = machine(*["h100"] * len(free_gib))
    cut = MigSlice(profile="3g.40gb", parent="NVIDIA H100 80GB HBM3")
    size = int(39.5 * 2**30)
    slices = (
        replace(g, mig=cut, memory_total_bytes=size, memory_free_bytes=int(f * 2**30), sm_count=60)
        for g, f in zip(whole.gpus, free_gib, strict=True)
    )
    return replace(whole, gpus=tuple(slices))


@pytest.mark.parametrize(
    ("wishes", "problem", "fix"),
    [
        ({"max_steps": 0}, "max_steps 0 is out of range", "above 0"),
        ({"num_gpus": 0}, "num_gpus 0 is out of range", "above 0"),
        ({"lora_rank": 0}, "lora_rank 0 is out of range", "above 0"),
        ({"lora_rank": -8}, "lora_rank -8 is out of range", "above 0"),
        ({"global_batch_size": -1}, "global_batch_size -1 is out of range", "above 0"),
        ({"num_train_epochs": 0.0}, "num_train_epochs 0 is out of range", "above 0"),
        ({"split_dataset_ratio": 1.0}, "split_dataset_ratio 1 is out of range", "below 1"),
        ({"max_length": 1}, "max_length 1 leaves nothing to learn", "--max_length 2 or more"),
        ({"train_type": "full", "lora_rank": 8, "use_dora": True}, "lora_rank, use_dora: for adapters", "lora"),
        ({"train_type": "full", "target_modules": ("q_proj",)}, "target_modules: for adapters", "Leave it out"),
        ({"train_type": "qlora", "quant_bits": None}, "quant_bits says not to", "--train_type lora"),
        ({"device": "cpu", "num_gpus": 2}, "device cpu and num_gpus 2 contradict", "Leave one of them out"),
        ({"device": "cpu", "torch_dtype": "float16"}, "does not train in float16", "float32"),
        ({"device": "cpu", "fp8": True}, "FP8 training needs a GPU", "Leave --fp8 out"),
        ({"device": "cpu", "attn_impl": "varlen"}, "the CPU has no variable-length kernel", "sdpa"),
        ({"torch_dtype": "float32", "attn_impl": "varlen"}, "takes 16-bit types only", "sdpa"),
        ({"num_gpus": 8, "global_batch_size": 4}, "global_batch_size 4 cannot be divided by 8 GPUs.", "Leave one"),
        ({"num_gpus": 9}, "8 idle GPUs of one model are there", "--num_gpus 8"),
    ],
)
def test_it_is_refused_with_a_way_out(wishes, problem, fix):
    with pytest.raises(RequestError) as refused:
        plan(*["a100-80g"] * 8, **wishes)
    assert problem in refused.value.problem
    assert fix in refused.value.fix


def test_without_rows_there_is_no_plan():
    with pytest.raises(DataError, match="no rows"):
        plan("a10", dataset=replace(ONE, num_rows=0))


def test_cuda_on_a_machine_without_a_gpu_is_refused():
    with pytest.raises(MachineError, match=r"A GPU is asked for: no GPU on this machine\.") as refused:
        plan(device="cuda")
    assert "--device cpu" in refused.value.fix


@pytest.mark.parametrize(
    ("wishes", "purpose"),
    [
        ({"train_type": "qlora"}, "qlora"),
        ({"train_type": "lora", "quant_bits": 4}, "qlora"),
        ({"train_type": "full", "optim": "adamw_8bit"}, "optim adamw_8bit"),
        ({"optim": "paged_adamw_8bit"}, "optim paged_adamw_8bit"),
    ],
)
def test_what_needs_bitsandbytes_names_it_while_it_is_planned(wishes, purpose):
    with pytest.raises(MissingPackage, match=f"{purpose} needs the package bitsandbytes") as refused:
        plan(on=machine("a10", packages=WITHOUT_BITSANDBYTES), **wishes)
    assert refused.value.fix == 'Install it: pip install "adaptft[qlora]"'


def test_the_way_out_to_qlora_says_what_to_install():
    decided = plan(on=machine("t4", packages=WITHOUT_BITSANDBYTES), train_type="lora")
    ways = [r for r in decided.rejected if r.is_way_out]
    assert ways[0].option == "--train_type qlora"
    assert 'after pip install "adaptft[qlora]"' in ways[0].reason


@pytest.mark.parametrize(
    ("gpu", "wishes", "train_type", "fits"),
    [
        ("a10", {}, "lora", True),
        ("t4", {}, "qlora", True),
        ("t4", {"quant_bits": None}, "lora", False),
        ("t4", {"train_type": "lora"}, "lora", False),
    ],
)
def test_where_no_type_is_named_lora_is_taken_or_qlora_where_that_does_not_fit(gpu, wishes, train_type, fits):
    decided = plan(gpu, **wishes)
    method = decided.decisions.method
    assert (method.value.train_type, decided.fits) == (train_type, fits)
    assert method.source == ("user" if "train_type" in wishes else "policy")
    assert ("a 16-bit base does not fit" in method.reason) == (train_type == "qlora")


def test_who_wants_no_quantisation_is_not_sent_to_qlora():
    options = [r.option for r in plan("t4", quant_bits=None, train_type="lora").rejected if r.is_way_out]
    assert "--train_type qlora" not in options


def test_a_run_takes_one_mig_slice_the_freest_and_says_so():
    decided = plan(on=mig(30, 39, 38), train_type="lora")
    placement = decided.decisions.placement
    assert (placement.value.strategy, placement.value.gpu_indices) == ("single", (1,))
    assert placement.reason == (
        "MIG slice 3g.40gb, 39.0 GiB free; 2 other slices left alone, since a run cannot span MIG slices"
    )
    assert decided.cost is None
    with pytest.raises(RequestError, match="cannot span MIG slices"):
        plan(on=mig(39, 39), num_gpus=2)


@pytest.mark.parametrize(
    ("gpus", "dataset", "wishes", "num_gpus", "global_batch"),
    [
        (8, ALPACA, {"global_batch_size": 4}, 4, 4),
        (8, ALPACA, {"global_batch_size": 6}, 6, 6),
        (4, ALPACA, {"global_batch_size": 6}, 3, 6),
        (8, ALPACA, {"global_batch_size": 16, "per_device_train_batch_size": 4}, 4, 16),
        (4, ALPACA, {"global_batch_size": 8, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, 2, 8),
        (2, ALPACA, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}, 2, 12),
        (8, FEW, {}, 1, 1),
        (8, ONE, {}, 1, 1),
        (8, ONE, {"num_gpus": 2}, 2, 2),
        (3, ALPACA, {}, 3, 18),
    ],
)
def test_no_more_gpus_are_taken_than_a_step_can_be_shared_by(gpus, dataset, wishes, num_gpus, global_batch):
    decided = plan(*["a100-80g"] * gpus, dataset=dataset, train_type="lora", **wishes)
    placement, batch = decided.decisions.placement, decided.decisions.batch.value
    assert (placement.value.num_gpus, batch.global_batch_size) == (num_gpus, global_batch)
    idle = num_gpus < gpus and "num_gpus" not in wishes
    assert (f"a step does not divide among {gpus} GPUs" in placement.reason) == idle


def test_the_step_of_a_small_dataset_does_not_depend_on_the_number_of_gpus():
    few = replace(ALPACA, num_rows=1_000, num_tokens=250_000)
    sizes = {
        plan(*["a100-80g"] * n, dataset=few, train_type="lora").decisions.batch.value.global_batch_size
        for n in (1, 2, 8)
    }
    assert sizes == {2}


@pytest.mark.parametrize(
    ("dataset", "wishes", "evaluates", "reason"),
    [
        (FEW, {}, False, "no rows held out: 40 are too few to spare any"),
        (FEW, {"eval_strategy": "epoch"}, True, "5.0% of the rows held out for evaluation, which is asked for"),
        (FEW, {"eval_steps": 2}, True, "which is asked for"),
        (ONE, {}, False, "no rows held out: 1 is too few to spare any"),
        (ALPACA, {"eval_strategy": "no"}, False, "no evaluation, as asked for"),
        (ALPACA, {"split_dataset_ratio": 0.1}, True, "10.0% of the rows held out, as asked for"),
        (ALPACA, {"val_dataset": ("held-out.jsonl",)}, True, "held-out rows come from val_dataset"),
    ],
)
def test_rows_are_held_out_where_there_are_enough_or_evaluation_is_asked_for(dataset, wishes, evaluates, reason):
    decided = plan("a100-80g", dataset=dataset, train_type="lora", **wishes)
    assert bool(decided.decisions.schedule.value.eval_steps) == evaluates
    assert reason in decided.decisions.schedule.reason
    assert not any("Evaluation is asked for" in warning for warning in decided.warnings)


@pytest.mark.parametrize("wishes", [{"eval_strategy": "epoch"}, {"eval_steps": 5}])
@pytest.mark.parametrize(("dataset", "more"), [(ONE, {}), (ALPACA, {"split_dataset_ratio": 0.0})])
def test_evaluation_that_is_asked_for_and_has_no_rows_is_warned_of(wishes, dataset, more):
    decided = plan("a100-80g", dataset=dataset, train_type="lora", **wishes, **more)
    assert decided.decisions.schedule.value.eval_steps == 0
    assert "Evaluation is asked for, and no rows are held out" in " ".join(decided.warnings)


def test_checkpointing_asked_for_where_nothing_fits_stays_the_users_and_the_plan_does_not_fit():
    decided = plan("t4", model=QWEN_32B, train_type="qlora", gradient_checkpointing=True)
    checkpointing = decided.decisions.checkpointing
    assert (checkpointing.value.layers, checkpointing.source, checkpointing.reason) == (64, "user", "asked for")
    assert not decided.fits
    assert decided.speed is decided.cost is None


def test_checkpointing_that_the_user_switched_off_is_a_way_out():
    decided = plan("a10", train_type="qlora", gradient_checkpointing=False, max_length=8192, quant_bits=4)
    assert not decided.fits
    assert "--gradient_checkpointing true" in [r.option for r in decided.rejected if r.is_way_out]


def test_where_nothing_fits_the_reason_does_not_claim_that_it_does():
    reason = plan("a10", train_type="full").decisions.checkpointing.reason
    assert reason == "even so, 22.1 GiB free are too little"


def test_one_gpu_of_the_table_that_is_misspelt_is_named():
    with pytest.raises(RequestError, match="--gpu a100-80 is one of several") as refused:
        machine_with("a100-80")
    assert "a100-80g" in refused.value.fix
    with pytest.raises(RequestError, match="--gpus 0"):
        machine_with("a100-80g", 0)


def test_a_small_model_on_one_row_has_a_plan():
    decided = plan("4090", model=QWEN_05B, dataset=ONE, train_type="full", packing=False)
    assert decided.fits
    assert decided.decisions.schedule.value.max_steps == 3
    assert decided.decisions.schedule.reason.startswith("3 passes of 1 step;")
    assert "1 sequence a step: with more, this little data would not last 100 steps" in decided.decisions.batch.reason


def test_data_that_does_not_fill_a_step_is_said():
    few = replace(ALPACA, num_rows=10, num_tokens=2850, longest_row_tokens=500)
    made = plan("a10", dataset=few, train_type="lora", global_batch_size=64)
    assert any(w.startswith("The data has 10 sequences, and a step takes 64") for w in made.warnings)
    assert not any("a step takes" in w for w in plan("a10", dataset=few, train_type="lora").warnings)
