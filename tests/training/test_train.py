"""A whole run: from rows in a file to a result folder that loads."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from training_plans import FULL, a_plan

from adaptft.accuracy import history_file, read_history
from adaptft.artifacts import read_artifact
from adaptft.errors import DataError, MissingPackage, OutputError, TrainingError
from adaptft.models import load_tokenizer
from adaptft.plans import Batch, Placement, TrainPlan
from adaptft.records import read_json
from adaptft.reports import RunReport
from adaptft.training import train

STEPS = {"max_steps": 6, "eval_steps": 3, "save_steps": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path_factory.getbasetemp() / "home"))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"instruction": f"What is {n} plus {n}?", "output": f"It is {n + n}."} for n in range(60)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def planned(model, rows, *, request=None, **changed):
    changed = {"schedule": STEPS, "batch": {"max_length": 160}} | changed
    return a_plan(model, request={"dataset": (str(rows),), **(request or {})}, **changed)


def test_a_lora_run_leaves_a_complete_result(tiny_qwen2, rows, tmp_path):
    out = tmp_path / "out"
    plan = planned(tiny_qwen2, rows, request={"system": "Add.", "report_to": ("tensorboard",)})
    report = train(plan, out)

    assert len(report.steps) == 6
    assert [step.step for step in report.steps] == [1, 2, 3, 4, 5, 6]
    assert report.steps[-1].loss < report.steps[0].loss
    assert report.final_eval_loss < report.initial_eval_loss
    assert report.num_tokens == sum(step.num_tokens for step in report.steps) > 0
    assert report.tokens_per_second > 0
    assert 0 <= report.input_wait_share < 1
    assert report.peak_memory.predicted == plan.memory.peak_bytes
    assert report.peak_memory.measured > 0
    assert report.step_seconds.predicted == 0.1
    assert report.step_seconds.measured > 0
    assert report.data.num_accepted == 60
    assert "transformers" in report.versions
    assert any("parameters trained" in note for note in report.notes)
    kept = read_history()[0][-1]
    assert (kept.model, kept.step_seconds) == (plan.model.name, report.step_seconds)

    assert read_json(RunReport, out / "report.json", error=OutputError, what="report", fix="") == report
    assert read_json(TrainPlan, out / "plan.json", error=OutputError, what="plan", fix="") == plan
    artifact = read_artifact(out)
    assert (artifact.kind, artifact.train_type, artifact.system) == ("adapter", "lora", "Add.")
    assert artifact.base_path == str(tiny_qwen2)
    assert load_tokenizer(out).chat_template == load_tokenizer(tiny_qwen2).chat_template
    assert "Held-out loss" in (out / "README.md").read_text()
    assert list((out / "runs").rglob("events.*")), "TensorBoard"
    assert not list(out.glob("*partial*"))


def test_a_history_that_cannot_be_written_leaves_the_result_whole(tiny_qwen2, rows, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    history_file().mkdir(parents=True)  # a folder takes no lines
    train(planned(tiny_qwen2, rows), tmp_path / "out")
    assert (tmp_path / "out" / "report.json").exists()
    assert "The run is not in" in capfd.readouterr().err


def test_the_adapter_loads_back_with_the_loss_it_ended_on(tiny_qwen2, rows, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    report = train(planned(tiny_qwen2, rows), tmp_path / "out")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_qwen2), tmp_path / "out")
    with safe_open(tmp_path / "out" / "adapter_model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float32}  # noqa: SIM118
    assert held_out_loss(model, planned(tiny_qwen2, rows)) == pytest.approx(report.final_eval_loss, rel=1e-4)


def test_a_full_model_loads_back_with_the_loss_it_ended_on(tiny_qwen2, rows, tmp_path):
    from transformers import AutoModelForCausalLM

    plan = planned(tiny_qwen2, rows, method=FULL, optimizer={"learning_rate": 1e-3})
    report = train(plan, tmp_path / "out")
    assert read_artifact(tmp_path / "out").kind == "model"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert held_out_loss(model, plan) == pytest.approx(report.final_eval_loss, rel=1e-4)


@torch.no_grad()
def held_out_loss(model, plan):
    from adaptft.training.rows import prepare_rows

    rows = prepare_rows(plan, load_tokenizer(Path(plan.request.model))).evaluation
    total = count = 0
    for index in range(len(rows)):
        row = {name: torch.from_numpy(array)[None] for name, array in rows[index].items()}
        logits = model.eval()(input_ids=row["input_ids"], position_ids=row["position_ids"], use_cache=False).logits
        total += torch.nn.functional.cross_entropy(logits[0, :-1], row["labels"][0, 1:], reduction="sum").item()
        count += (row["labels"][0, 1:] != -100).sum().item()
    return total / count


def test_a_run_goes_on_from_its_newest_checkpoint(tiny_qwen2, rows, tmp_path):
    whole = train(planned(tiny_qwen2, rows), tmp_path / "whole")
    train(
        planned(tiny_qwen2, rows, schedule=STEPS | {"max_steps": 3}, optimizer={"lr_scheduler_type": "constant"}),
        tmp_path / "out",
    )
    plan = planned(
        tiny_qwen2, rows, request={"resume_from_checkpoint": "auto"}, optimizer={"lr_scheduler_type": "constant"}
    )
    report = train(plan, tmp_path / "out")
    assert len(report.steps) == 6, "the steps before the interruption are in the report"
    assert any("Went on from" in note and "checkpoint-3" in note for note in report.notes)
    assert report.initial_eval_loss == whole.initial_eval_loss
    assert read_artifact(tmp_path / "out").kind == "adapter"


def test_qlora_runs_on_the_cpu(tiny_qwen2, rows, tmp_path):
    pytest.importorskip("bitsandbytes")
    plan = planned(tiny_qwen2, rows, method={"train_type": "qlora", "base_storage": "nf4", "double_quant": True})
    report = train(plan, tmp_path / "out")
    assert report.steps[-1].loss < report.steps[0].loss
    assert read_artifact(tmp_path / "out").train_type == "qlora"


def test_epochs_are_counted_on_the_rows_that_are_there(tiny_qwen2, rows, tmp_path):
    schedule = {"max_steps": 99, "num_train_epochs": 2.0, "held_out_ratio": 0.0, "eval_steps": 0, "save_steps": 0}
    batch = {"max_length": 160, "packing": False, "micro_batch_size": 10, "global_batch_size": 10}
    report = train(planned(tiny_qwen2, rows, schedule=schedule, batch=batch), tmp_path / "out")
    assert len(report.steps) == 12
    assert any("12 steps where the plan estimated 99" in note for note in report.notes)
    assert report.initial_eval_loss is None


def test_evaluation_that_was_asked_for_without_held_out_rows_is_told(tiny_qwen2, rows, tmp_path):
    schedule = {"max_steps": 1, "held_out_ratio": 0.0, "eval_steps": 0}
    request = {"eval_strategy": "epoch", "given": ("eval_strategy",)}
    report = train(planned(tiny_qwen2, rows, schedule=schedule, request=request), tmp_path / "out")
    assert any(note.startswith("eval_strategy epoch: no rows are held out") for note in report.notes)


def test_held_out_rows_may_come_from_another_file(tiny_qwen2, rows, tmp_path):
    others = tmp_path / "others.jsonl"
    others.write_text("".join(rows.read_text().splitlines(keepends=True)[:5]))
    schedule = {"max_steps": 1, "held_out_ratio": 0.0, "eval_steps": 1}
    plan = planned(tiny_qwen2, rows, schedule=schedule, request={"val_dataset": (str(others),)})
    report = train(plan, tmp_path / "out")
    assert report.data.num_accepted == 60
    assert report.final_eval_loss is not None


def test_without_data_the_built_in_rows_are_taken(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, batch={"max_length": 512}, schedule={"max_steps": 1, "eval_steps": 0})
    assert train(plan, tmp_path / "out").data.num_accepted == 800


def test_the_second_run_in_a_folder_is_refused_and_changes_nothing(tiny_qwen2, rows, tmp_path):
    plan = planned(tiny_qwen2, rows, schedule=STEPS | {"max_steps": 1})
    train(plan, tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    with pytest.raises(OutputError, match="holds another run"):
        train(plan, tmp_path / "out")
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before
    replacing = dataclasses.replace(plan.request, overwrite_output_dir=True)
    assert len(train(dataclasses.replace(plan, request=replacing), tmp_path / "out").steps) == 1


def test_rows_that_all_are_too_long_are_refused(tiny_qwen2, rows, tmp_path):
    with pytest.raises(DataError, match="longer than max_length"):
        train(planned(tiny_qwen2, rows, batch={"max_length": 8}), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing half-written"


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(tiny_qwen2, rows, tmp_path):
    with pytest.raises(TrainingError, match="query_key_value"):
        train(planned(tiny_qwen2, rows, method={"target_modules": ("query_key_value",)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_loss_that_breaks_after_a_checkpoint_leaves_the_checkpoint(tiny_qwen2, rows, tmp_path):
    schedule = {"max_steps": 6, "eval_steps": 0, "save_steps": 1}
    with pytest.raises(TrainingError, match=r"is (nan|inf)"):
        train(planned(tiny_qwen2, rows, schedule=schedule, optimizer={"learning_rate": 1e30}), tmp_path / "out")
    assert (tmp_path / "out" / "checkpoint-1").is_dir()


def test_a_tracker_that_is_not_installed_is_refused(tiny_qwen2, rows, tmp_path):
    with pytest.raises(MissingPackage, match="swanlab"):
        train(planned(tiny_qwen2, rows, request={"report_to": ("swanlab",)}), tmp_path / "out")


@pytest.mark.slow
def test_two_ranks_train_to_the_losses_of_one(tiny_qwen2, rows, tmp_path):
    gentle = {"optimizer": {"learning_rate": 1e-4}, "schedule": STEPS | {"max_steps": 3}, "batch": Batch(
        micro_batch_size=4, gradient_accumulation_steps=1, data_parallel_size=1, global_batch_size=4,
        eval_batch_size=2, max_length=160, packing=True,
    )}  # fmt: skip
    one = train(planned(tiny_qwen2, rows, **gentle), tmp_path / "one")
    split = dataclasses.replace(gentle["batch"], micro_batch_size=2, data_parallel_size=2)
    placement = Placement(strategy="ddp", gpu_indices=(0, 1))
    two = train(planned(tiny_qwen2, rows, **(gentle | {"batch": split, "placement": placement})), tmp_path / "two")
    assert [s.loss for s in two.steps] == pytest.approx([s.loss for s in one.steps], rel=1e-4)
    assert [s.gradient_norm for s in two.steps] == pytest.approx([s.gradient_norm for s in one.steps], rel=1e-3)
    assert [s.num_tokens for s in two.steps] == [s.num_tokens for s in one.steps]
    assert two.final_eval_loss == pytest.approx(one.final_eval_loss, rel=1e-4)


@pytest.mark.slow
def test_a_worker_that_stops_leaves_its_message_and_a_way_out(tiny_qwen2, rows, tmp_path):
    placement = Placement(strategy="ddp", gpu_indices=(0, 1))
    batch = {"micro_batch_size": 1, "data_parallel_size": 2, "global_batch_size": 2, "max_length": 8}
    with pytest.raises(TrainingError, match="No row is left: all 57 are longer than max_length 8"):
        train(planned(tiny_qwen2, rows, batch=batch, placement=placement), tmp_path / "out")
