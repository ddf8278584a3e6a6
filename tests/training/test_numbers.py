"""Numbers that are none: the step is skipped, its rows are written down, the run goes back or stops with a cause."""

import json
import math

import pytest
import torch
from training_plans import a_plan, a_trainer, losses, packs, single_rows

from adaptft.errors import TrainingError
from adaptft.reports import Incident
from adaptft.training import guarding, train
from adaptft.training.checkpoints import checkpoint_folders
from adaptft.training.incidents import MOST, Journal
from adaptft.training.numbers import (
    MOST_BAD_STEPS,
    MOST_OVERFLOWS,
    Evidence,
    NumberWatch,
    RollBack,
    StepNumbers,
    require_learning_rate,
)

POISON = 250
"""A token whose embedding is made NaN: rows with it give NaN, others do not (Llama's head is a weight of its own)."""
ROWS = single_rows([12, 20, 9, 30, 16, 25, 11, 14])
LOOSE = {"packing": False, "micro_batch_size": 1, "global_batch_size": 1}


def poisoned(rows, indices):
    """Rows in which those at ``indices`` hold the poison."""
    ids = [
        row if number not in indices else [*row[:3], POISON, *row[4:]] for number, row in enumerate(rows["input_ids"])
    ]
    return rows.remove_columns("input_ids").add_column("input_ids", ids)


def a_poisoned_trainer(model, folder, bad, *, steps=8, journal=None):
    rows = poisoned(ROWS, bad)
    plan = a_plan(model, batch=LOOSE, schedule={"max_steps": steps, "save_steps": 2})
    trainer = a_trainer(plan, folder, rows, journal=journal)
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight[POISON] = math.nan
    return trainer


def kinds(trainer):
    return [incident.kind for incident in trainer.journal.state.incidents]


def weights(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if p.requires_grad}


def test_a_bad_step_changes_nothing_and_its_rows_are_written_down(tiny_llama, tmp_path):
    trainer = a_poisoned_trainer(tiny_llama, tmp_path, {4})
    trainer.train()
    (incident,) = trainer.journal.state.incidents
    assert incident.kind == "not_a_number"
    assert "is nan: the step is skipped" in incident.said
    assert all(torch.isfinite(p).all() for p in weights(trainer).values())
    (file,) = (tmp_path / "bad-steps").iterdir()
    assert str(file) in incident.said
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["input_ids"] == poisoned(ROWS, {4})[4]["input_ids"]
    assert line["trained"] == [False, False, *[True] * 14]
    assert line["text"]
    assert len(losses(trainer)) == 7
    assert trainer.state.global_step == 8


def test_a_run_with_a_bad_row_learns_what_it_learns_without_that_step(tiny_llama, tmp_path):
    """Adam's state and the weights behind the bad step are those before it."""
    seen = {}
    trainer = a_poisoned_trainer(tiny_llama, tmp_path, {4})

    from transformers import TrainerCallback

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            seen[state.global_step] = weights(trainer)

    trainer.add_callback(Look())
    trainer.train()
    bad = trainer.journal.state.incidents[0].step
    assert all(torch.equal(seen[bad][name], seen[bad - 1][name]) for name in seen[bad])
    assert any(not torch.equal(seen[bad + 1][name], seen[bad][name]) for name in seen[bad])


def test_many_in_a_row_ask_to_go_back_behind_the_last_good_step(tiny_llama, tmp_path):
    order = torch.randperm(8, generator=torch.Generator().manual_seed(42)).tolist()
    trainer = a_poisoned_trainer(tiny_llama, tmp_path, set(order[5:8]))
    with pytest.raises(RollBack, match=r"3 steps in a row. Likely cause: the data") as caught:
        trainer.train()
    assert caught.value.good_step == 5
    assert "step-6.jsonl" in caught.value.problem + trainer.journal.state.incidents[0].said
    assert [p.name for p in checkpoint_folders(tmp_path)] == ["checkpoint-4", "checkpoint-2"], "none amid bad steps"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n} + {n}?", "output": f"{n + n}."}) for n in range(40)))
    return path


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path_factory.getbasetemp() / "home"))


def planned(model, rows, **changed):
    schedule = {"max_steps": 10, "eval_steps": 0, "save_steps": 2}
    return a_plan(
        model, request={"dataset": (str(rows),)}, **{"schedule": schedule, "batch": {"max_length": 64}} | changed
    )


def breaks_between(first, last, times):
    """A global hook: the model's layers give NaN in optimizer steps ``first`` to ``last``, ``times`` runs long."""
    from contextlib import contextmanager

    from torch.nn.modules import module as hooks
    from transformers.modeling_layers import GradientCheckpointingLayer

    @contextmanager
    def active():
        passes, runs = 0, 0

        def look(module, inputs, output):
            nonlocal passes, runs
            if not isinstance(module, GradientCheckpointingLayer) or module.self_attn.layer_idx != 0:
                return None
            if not module.training:
                return None
            passes += 1
            if passes == last + 2:  # one pass was the rehearsal's
                runs += 1
            return output * math.nan if first < passes <= last + 1 and runs < times else None

        handle = hooks.register_module_forward_hook(look)
        try:
            yield
        finally:
            handle.remove()

    return active()


def test_the_run_goes_back_with_a_lower_rate_and_ends(tiny_qwen2, rows, tmp_path):
    with breaks_between(6, 8, 1):
        report = train(planned(tiny_qwen2, rows), tmp_path / "out")
    assert [step.step for step in report.steps] == list(range(1, 11))
    assert [i.kind for i in report.incidents] == ["not_a_number"] * 3 + ["rolled_back"]
    assert "Went back to checkpoint-4; learning rate x 0.25." in report.incidents[-1].said
    rates = {step.step: step.learning_rate for step in report.steps}
    full = {step.step: step.learning_rate for step in train(planned(tiny_qwen2, rows), tmp_path / "whole").steps}
    assert {step: rates[step] / full[step] for step in rates} == pytest.approx(
        {step: 1.0 if step <= 4 else 0.25 for step in rates}
    )
    assert any("rolled" in note or "Went back" in note for note in report.notes)


def test_a_rate_far_too_high_ends_in_that_diagnosis(tiny_qwen2, rows, tmp_path):
    plan = planned(tiny_qwen2, rows, optimizer={"learning_rate": 1e30})
    with pytest.raises(TrainingError, match=r"3 steps in a row. Likely cause: the learning rate") as caught:
        train(plan, tmp_path / "out")
    assert "--learning_rate" in caught.value.fix


# ---- what the watch decides, step by step


def step(number, loss=2.0, norm=1.0, skipped=False):
    return StepNumbers(
        step=number, loss=loss, gradient_norm=norm, learning_rate=1e-4, was_skipped_by_scaler=skipped
    )  # fmt: skip


def watched(steps, **options):
    watch = NumberWatch(Journal(is_told=False), **options)
    for now in steps:
        watch.look(now)
    return watch


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (step(5, loss=math.nan), "The loss of step 5 is nan"),
        (step(5, loss=math.inf, skipped=True), "The loss of step 5 is inf"),
        (step(5, norm=math.nan), "The gradient of step 5 is nan while its loss is 2.0000"),
        (step(5, norm=math.inf, skipped=True), None),
        (step(5, norm=None), None),
    ],
)
def test_numbers_that_are_none_are_named(now, said):
    assert now.fault == said


def test_good_steps_between_bad_ones_start_the_count_anew():
    bad = [step(n, loss=math.nan) if n % MOST_BAD_STEPS else step(n) for n in range(MOST_BAD_STEPS, 30)]
    assert len(watched(bad).journal.state.incidents) == sum(now.fault is not None for now in bad)


def test_no_good_step_at_all_stops_at_once_and_names_the_weight():
    watch = watched([step(n, loss=math.nan) for n in range(1, MOST_BAD_STEPS)])
    with pytest.raises(TrainingError, match="came with a weight that is no number: lm_head") as caught:
        watch.look(step(MOST_BAD_STEPS, loss=math.nan), evidence=lambda: Evidence(broken_weight="lm_head"))
    assert not isinstance(caught.value, RollBack)


@pytest.mark.parametrize(
    ("options", "evidence", "cause"),
    [
        ({}, Evidence(), "the data"),
        ({}, Evidence(good_rows_are_bad=True), "the learning rate"),
        ({"is_fp16": True}, Evidence(), "precision"),
    ],
)
def test_the_likely_cause_follows_from_the_evidence(options, evidence, cause):
    watch = watched([*(step(n) for n in range(1, 9)), step(9, math.nan), step(10, math.nan)], **options)
    with pytest.raises(RollBack, match=f"Likely cause: {cause}") as caught:
        watch.look(step(11, math.nan), saved="bad-steps/step-11.jsonl", evidence=lambda: evidence)
    assert caught.value.good_step == 8


def test_overflows_are_counted_and_too_many_in_a_row_stop():
    few = watched([*(step(n, norm=math.inf, skipped=True) for n in range(1, 6)), step(6)])
    assert few.journal.state.overflows == 5
    with pytest.raises(TrainingError, match="overflowed in float16"):
        watched([step(n, norm=math.inf, skipped=True) for n in range(1, MOST_OVERFLOWS + 1)])


def test_a_spike_is_flagged_and_noise_is_not():
    wave = [step(n, loss=2.0 + 0.3 * math.sin(n)) for n in range(1, 41)]
    assert watched(wave).journal.state.incidents == ()
    (spike,) = watched([*wave, step(41, loss=9.0), step(42)]).journal.state.incidents
    assert spike == Incident(
        kind="loss_spike", step=41, said=spike.said
    )  # fmt: skip
    assert "jumped to 9.0000" in spike.said


def test_incidents_do_not_fill_the_disk():
    journal = Journal(is_told=False)
    for number in range(3 * MOST):
        journal.add("loss_spike", number, "again")
    assert len(journal.state.incidents) == MOST


# ---- runs that are dead from the beginning


def test_a_learning_rate_of_zero_is_refused(tiny_qwen2, tmp_path):
    with pytest.raises(TrainingError, match="learning rate is 0"):
        a_trainer(a_plan(tiny_qwen2, optimizer={"learning_rate": 0.0}), tmp_path, packs([[20, 30]]))
    require_learning_rate(1e-9)


def test_steps_without_a_gradient_stop_the_run(tiny_qwen2, tmp_path):
    trainer = a_trainer(a_plan(tiny_qwen2), tmp_path, packs([[20, 30]] * 8))
    for name, parameter in trainer.model.named_parameters():
        if "lora_A" in name:
            parameter.data.zero_()  # both factors zero: neither ever gets a gradient
    with pytest.raises(TrainingError, match="3 steps up to step 3 had no gradient at all"):
        trainer.train()


# ---- the step itself


@pytest.mark.parametrize(("norm", "loss", "moves"), [(1.0, 1.0, True), (math.nan, 1.0, False), (1.0, math.inf, False)])
def test_the_optimizer_takes_only_steps_of_numbers(norm, loss, moves):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.ones(3)
    guarding.guard_step(optimizer, [weight], torch.tensor(norm), torch.tensor(loss))
    optimizer.step()
    assert bool((weight != 1).all()) == moves
    assert bool(optimizer.state) == moves


def test_a_broken_weight_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert guarding.broken_weight(model) is None
    with torch.no_grad():
        model[1].bias[0] = math.inf
    assert guarding.broken_weight(model) == "1.bias"
