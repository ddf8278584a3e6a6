"""Going on with another run is refused before anything is written, and everything that differs is named."""

import dataclasses
import json

import pytest
from training_plans import FULL, a_plan, a_trainer, packs

from adaptft.errors import OutputError, RequestError
from adaptft.training import folders, train
from adaptft.training.identification import total_steps
from adaptft.training.identity import RunIdentity, differences, require_same_run

SCHEDULE = {"max_steps": 4, "eval_steps": 2, "save_steps": 2}
BATCH = {"max_length": 160}
IDENTITY = RunIdentity(
    model="tiny", model_fingerprint="aa", train_type="lora", dataset=("a.jsonl",), rows_hash="11", val_dataset=(),
    split_dataset_ratio=0.05, system=None, train_on_prompt=False, mask_history=False, truncation_strategy="delete",
    max_length=64, packing=True, global_batch_size=2, lora_rank=8, lora_alpha=16.0, lora_dropout=0.0,
    target_modules=("q_proj",), modules_to_save=(), use_rslora=False, use_dora=False, optim="adamw",
    learning_rate=1e-4, weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.95, max_grad_norm=1.0,
    lr_scheduler_type="cosine", warmup_steps=1, max_steps=6, seed=42,
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n} + {n}?", "output": f"{n + n}."}) for n in range(40)))
    return path


@pytest.fixture(scope="module")
def finished(tiny_qwen2, rows, tmp_path_factory):
    """A finished run of four steps with checkpoints 2 and 4."""
    folder = tmp_path_factory.mktemp("finished") / "out"
    train(planned(tiny_qwen2, rows), folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path_factory.getbasetemp() / "home"))


@pytest.fixture(autouse=True, scope="module")
def module_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTFT_HOME", str(tmp_path_factory.getbasetemp() / "home"))
        yield


def planned(model, rows, *, request=None, **changed):
    return a_plan(
        model, request={"dataset": (str(rows),), **(request or {})}, **{"schedule": SCHEDULE, "batch": BATCH} | changed
    )


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("changed", "said", "option"),
    [
        ({"method": {"lora_rank": 16}}, "lora_rank 4 there and 16 here", "--lora_rank 4"),
        ({"method": {"lora_rank": 2, "lora_alpha": 4.0}}, "and 2 here; lora_alpha 8 there and 4", "--lora_alpha 8"),
        ({"method": {"use_dora": True}}, "use_dora false there and true here", "--use_dora false"),
        ({"method": {"target_modules": ("q_proj",)}}, "target_modules down_proj", "--target_modules down_proj"),
        ({"method": FULL}, "train_type lora there and full here", "--train_type lora"),
        ({"optimizer": {"learning_rate": 1e-3}}, "learning_rate 0.005 there and 0.001 here", "--learning_rate 0.005"),
        ({"optimizer": {"warmup_steps": 2}}, "warmup_steps 1 there and 2 here", "--resume_anyway true"),
        ({"schedule": SCHEDULE | {"max_steps": 8}}, "max_steps 4 there and 8 here", "follows the number of steps"),
        ({"schedule": SCHEDULE | {"max_steps": 3}}, "max_steps 4 there and 3 here", "--max_steps 4"),
        ({"batch": BATCH | {"max_length": 96}}, "max_length 160 there and 96 here", "--max_length 160"),
        ({"batch": BATCH | {"packing": False}}, "packing true there and false here", "--packing true"),
        ({"batch": BATCH | {"micro_batch_size": 8, "global_batch_size": 8}}, "global_batch_size 2 there", "--global"),
        ({"request": {"seed": 7}}, "seed 42 there and 7 here", "--seed 42"),
        ({"request": {"system": "Be brief."}}, "system not set there and Be brief. here", "Start a new run"),
    ],
)  # fmt: skip
def test_another_experiment_is_refused_by_name_and_nothing_changes(finished, tiny_qwen2, rows, changed, said, option):
    before = contents(finished)
    request = {"resume_from_checkpoint": "auto"} | changed.get("request", {})
    with pytest.raises(RequestError) as caught:
        train(planned(tiny_qwen2, rows, **changed | {"request": request}), finished)
    assert said in caught.value.problem
    assert option in caught.value.fix
    assert contents(finished) == before


def test_other_rows_are_refused_whether_the_file_has_changed_or_another_is_named(finished, tiny_qwen2, rows, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(rows.read_text().replace("+", "plus"))
    plan = planned(tiny_qwen2, other, request={"resume_from_checkpoint": "auto"})
    with pytest.raises(RequestError, match=r"dataset .*rows.jsonl there and .*other.jsonl here"):
        train(plan, finished)
    with pytest.raises(RequestError, match=r"the rows of a.jsonl have changed since"):
        require_same_run(tmp_path, IDENTITY, dataclasses.replace(IDENTITY, rows_hash="22"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ()),
        ({"model": "./tiny"}, ()),
        ({"model": "big", "model_fingerprint": "bb"}, ("model",)),
        ({"model_fingerprint": "bb"}, ("model_fingerprint",)),
        ({"dataset": ("./a.jsonl",)}, ()),
        ({"seed": 1, "rows_hash": "22"}, ("seed",)),
        ({"max_steps": 8, "warmup_steps": 2}, ("max_steps",)),
    ],
)
def test_names_do_not_count_and_consequences_are_not_named_twice(changed, expected):
    assert differences(IDENTITY, dataclasses.replace(IDENTITY, **changed)) == expected


def test_a_learning_rate_that_does_not_fall_lets_a_run_be_longer():
    constant = dataclasses.replace(IDENTITY, lr_scheduler_type="constant_with_warmup")
    assert differences(constant, dataclasses.replace(constant, max_steps=9)) == ()
    assert differences(constant, dataclasses.replace(constant, max_steps=9, warmup_steps=2)) == ("warmup_steps",)


@pytest.mark.parametrize(("micro", "accumulation", "epochs"), [(1, 4, 2.0), (4, 1, 1.5), (2, 2, 0.1)])
def test_steps_are_counted_as_transformers_counts_them(tiny_qwen2, tmp_path, micro, accumulation, epochs):
    batch = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation, "global_batch_size": 4}
    plan = a_plan(tiny_qwen2, batch=batch, schedule={"max_steps": 99, "num_train_epochs": epochs})
    trainer = a_trainer(plan, tmp_path, packs([[20, 30]] * 10))
    trainer.train()
    assert trainer.state.max_steps == trainer.state.global_step == total_steps(plan, 10)


def test_a_finished_run_is_told_so_and_nothing_changes(finished, tiny_qwen2, rows):
    before = contents(finished)
    report = train(planned(tiny_qwen2, rows, request={"resume_from_checkpoint": "auto"}), finished)
    assert report.was_finished
    assert len(report.steps) == 4
    assert contents(finished) == before


def test_a_run_that_lacks_only_its_result_takes_no_step_more(finished, tiny_qwen2, rows, tmp_path):
    import shutil

    copy = shutil.copytree(finished, tmp_path / "copy")
    whole = json.loads((copy / "report.json").read_text())
    for name in ("adaptft.json", "report.json", "adapter_model.safetensors"):
        (copy / name).unlink()
    report = train(planned(tiny_qwen2, rows, request={"resume_from_checkpoint": "auto"}), copy)
    assert [s.loss for s in report.steps] == [s["loss"] for s in whole["steps"]]
    assert not report.was_finished
    assert (copy / "adapter_model.safetensors").read_bytes() == (finished / "adapter_model.safetensors").read_bytes()


def test_auto_does_not_replace_a_result_without_checkpoints(tiny_qwen2, rows, tmp_path):
    plan = planned(tiny_qwen2, rows, schedule={"max_steps": 1})
    train(plan, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match="no whole checkpoint to go on from"):
        train(planned(tiny_qwen2, rows, request={"resume_from_checkpoint": "auto"}), tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_a_run_that_cannot_begin_does_not_cost_the_one_it_would_replace(finished, tiny_qwen2, rows):
    before = contents(finished)
    plan = planned(
        tiny_qwen2, rows, method={"target_modules": ("query_key_value",)}, request={"overwrite_output_dir": True}
    )
    with pytest.raises(Exception, match="query_key_value"):
        train(plan, finished)
    assert contents(finished) == before


def test_a_checkpoint_of_one_folder_does_not_go_on_over_another_run(finished, tiny_qwen2, rows, tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    plan = planned(tiny_qwen2, rows, request={"resume_from_checkpoint": str(finished / "checkpoint-2")})
    with pytest.raises(OutputError, match="holds another run"):
        folders.check(plan.request, tmp_path)
    folders.check(plan.request, finished)


def test_differences_that_change_no_weight_and_no_row_may_be_gone_on_with(finished, tiny_qwen2, rows, tmp_path):
    import shutil

    copy = shutil.copytree(finished, tmp_path / "copy")
    for name in ("checkpoint-4", "adaptft.json"):
        shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
    request = {"resume_from_checkpoint": "auto", "resume_anyway": True}
    changed = {"optimizer": {"learning_rate": 1e-3, "weight_decay": 0.5, "lr_scheduler_type": "constant"}}
    report = train(planned(tiny_qwen2, rows, request=request, **changed), copy)
    whole = json.loads((finished / "report.json").read_text())["steps"]
    assert [s.loss for s in report.steps[:2]] == [s["loss"] for s in whole[:2]]
    assert [s.learning_rate for s in report.steps[2:]] == [1e-3, 1e-3], "the new rate from the first step on"
    (incident,) = report.incidents
    assert (incident.kind, incident.step) == ("gone_on_with_changes", 2)
    assert "learning_rate 0.005 there and 0.001 here" in incident.said


@pytest.mark.parametrize(
    "changed", [{"method": {"lora_rank": 16}}, {"request": {"seed": 7}}, {"batch": BATCH | {"max_length": 96}}]
)
def test_other_differences_are_refused_all_the_same(finished, tiny_qwen2, rows, changed):
    request = {"resume_from_checkpoint": "auto", "resume_anyway": True} | changed.get("request", {})
    with pytest.raises(RequestError) as caught:
        train(planned(tiny_qwen2, rows, **changed | {"request": request}), finished)
    assert "resume_anyway" not in caught.value.fix


def weights_only(checkpoint, **more):
    return {"resume_from_checkpoint": str(checkpoint), "resume_only_model": True, **more}


def test_weights_alone_begin_a_new_run_and_need_no_optimizer(finished, tiny_qwen2, rows, tmp_path):
    import shutil

    copy = shutil.copytree(finished / "checkpoint-4", tmp_path / "checkpoint-4")
    (copy / "optimizer.pt").unlink()
    (copy / "rng_state.pth").unlink()
    before = contents(copy)
    report = train(planned(tiny_qwen2, rows, request=weights_only(copy)), tmp_path / "new")
    earlier = json.loads((finished / "report.json").read_text())
    assert [s.step for s in report.steps] == [1, 2, 3, 4]
    assert [s.learning_rate for s in report.steps] == [s["learning_rate"] for s in earlier["steps"]]
    assert report.initial_eval_loss == pytest.approx(earlier["final_eval_loss"], rel=1e-6)
    assert f"Began at step 0 with the weights of {copy}, a new optimizer and the whole schedule." in report.notes
    assert contents(copy) == before


def test_weights_of_other_adapters_are_refused(finished, tiny_qwen2, rows, tmp_path):
    plan = planned(
        tiny_qwen2, rows, request=weights_only(finished / "checkpoint-4"), method={"lora_rank": 8},
        optimizer={"learning_rate": 1e-3},
    )  # fmt: skip
    with pytest.raises(RequestError, match=r"do not fit this plan: lora_rank 4 there and 8 here\.") as caught:
        train(plan, tmp_path / "new")
    assert caught.value.fix == "Use --lora_rank 4."


@pytest.mark.parametrize(
    ("checkpoint", "said"), [(None, "nothing says which"), ("auto", "nothing says which"), ("checkpoint-4", "begin a")]
)
def test_weights_alone_do_not_go_into_the_old_run(finished, tiny_qwen2, rows, checkpoint, said):
    named = str(finished / checkpoint) if checkpoint == "checkpoint-4" else checkpoint
    before = contents(finished)
    plan = planned(tiny_qwen2, rows, request={"resume_from_checkpoint": named, "resume_only_model": True})
    with pytest.raises((RequestError, OutputError), match=said):
        train(plan, finished)
    assert contents(finished) == before
