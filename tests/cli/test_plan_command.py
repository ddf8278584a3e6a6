"""``adaptft plan``: recipes and flags to a plan, on a recorded machine."""

import json

import models_factory
import pytest

from adaptft.cli.words import decision_words
from adaptft.plans import TrainPlan
from adaptft.records import dumps, from_dict

RECIPE = """\
train_type: lora
max_steps: 6
save_steps: 2
packing: "false"
use_rslora: 'no'
gradient_checkpointing: "True"
eval_strategy: no          # YAML 1.1 reads no and off as the boolean false
save_strategy: off
report_to: none
"""
ROW = json.dumps({"instruction": "Add 2 and 3.", "input": "", "output": "2 + 3 = 5"})


@pytest.fixture
def plan(adaptft_here, tiny_qwen2, tmp_path, monkeypatch):
    """Run the command in an empty folder with one small file; its process."""
    from sample_plan import MACHINE

    (tmp_path / "machine.json").write_text(dumps(MACHINE))
    (tmp_path / "rows.jsonl").write_text((ROW + "\n") * 40)

    monkeypatch.chdir(tmp_path)

    def run(*words, machine="machine.json", model=str(tiny_qwen2)):
        return adaptft_here("plan", *words, "--model", model, "--dataset", "rows.jsonl", "--machine", machine)

    run.folder = tmp_path
    return run


def test_the_recipe_of_the_case_is_planned_as_it_is_written(plan):
    (plan.folder / "recipe.yaml").write_text(RECIPE)
    done = plan("recipe.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = from_dict(TrainPlan, json.loads(done.stdout))
    decisions = found.decisions
    assert (decisions.batch.value.packing, decisions.batch.source) == (False, "user")
    assert decisions.method.value.use_rslora is False
    assert (decisions.checkpointing.value.layers, decisions.checkpointing.source) == (found.model.num_layers, "user")
    assert (decisions.schedule.value.eval_steps, decisions.schedule.value.save_steps) == (0, 0)
    assert decisions.schedule.source == "user"
    assert found.request.report_to == ()


@pytest.mark.parametrize("words", ["--packing False", "--packing no", "--packing=off", "--neat-packing 0"])
def test_packing_is_off_where_the_command_line_says_so(plan, words):
    done = plan(*words.split(), "--json")
    batch = json.loads(done.stdout)["decisions"]["batch"]
    assert (batch["value"]["packing"], batch["source"]) == (False, "user")


def test_the_page_shows_data_decisions_and_memory_and_nothing_is_written(plan):
    done = plan("--train_type", "lora")
    assert done.returncode == 0, done.stderr
    for part in ("40 accepted, 0 rejected", "2 + 3 = 5", "Training plan", "Memory", "checkpointing", "user"):
        assert part in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    assert sorted(p.name for p in plan.folder.iterdir()) == ["machine.json", "rows.jsonl"]


def test_text_in_the_loss_is_not_wrapped_in_a_pipe(plan):
    answer = "2 + 3 = 5, " * 30 + "done"
    row = {"instruction": "Add 2 and 3.", "output": answer}
    (plan.folder / "rows.jsonl").write_text((json.dumps(row) + "\n") * 40)
    done = plan("--train_type", "lora")
    assert f'  "{answer}<|im_end|>"' in done.stdout.splitlines()


def test_a_model_that_is_not_here_is_planned_with_estimated_data(plan):
    done = plan("--train_type", "qlora", model="qwen2.5-7b")
    assert done.returncode == 0, done.stderr
    assert "(assumed, not measured)" in " ".join(done.stdout.split())
    assert "adaptft download qwen2.5-7b" in " ".join(done.stdout.split())


def test_a_config_alone_is_planned_with_estimated_data(plan):
    (plan.folder / "model").mkdir()
    (plan.folder / "model" / "config.json").write_text(json.dumps(models_factory.config_of("tiny-qwen3")))
    done = plan("--train_type", "lora", "--json", model="model")
    assert done.returncode == 0, done.stderr
    assert from_dict(TrainPlan, json.loads(done.stdout)).dataset.assumed
    page = " ".join(plan("--train_type", "lora", model="model").stdout.split())
    assert "estimated from its size: model has no tokenizer to measure it with" in page


def test_what_does_not_fit_is_shown_and_ends_with_status_3(plan):
    done = plan("--train_type", "full", model="qwen2.5-72b")
    assert done.returncode == 3
    assert "does not fit" in done.stdout
    error, fix = done.stderr.splitlines()
    assert error.startswith("Error: qwen2.5-72b with train_type full does not fit this machine: it needs ")
    assert error.endswith(" are free.")
    assert fix.startswith("Fix: ")


def test_a_file_that_is_no_machine_is_refused_in_two_lines(plan):
    (plan.folder / "broken.json").write_text("{}")
    done = plan(machine="broken.json")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2


def test_every_decision_has_words(plan):
    done = plan("--json")
    decisions = from_dict(TrainPlan, json.loads(done.stdout)).decisions
    for name in decisions.__slots__:
        assert decision_words(getattr(decisions, name).value)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpu", "a10"), "--gpu and --machine both name a machine."),
        (("--gpus", "2"), "--gpus 2 does not say of which."),
    ],
)
def test_a_machine_is_named_once(plan, words, problem):
    done = plan(*words)
    assert done.returncode == 2
    assert problem in done.stderr
