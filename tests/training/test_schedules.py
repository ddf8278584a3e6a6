"""The learning rate of each step: never 0, whatever the warm-up."""

import pytest
from training_plans import a_plan, a_trainer, packs

from adaptft.training.schedules import factor

KINDS = ("cosine", "linear", "constant", "constant_with_warmup")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (1, 2), (3, 100), (100, 100)])
def test_every_step_trains(kind, warmup, total):
    factors = [factor(step, warmup, total, kind) for step in range(total)]
    assert all(0 < value <= 1 for value in factors)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
        ("cosine", [1 / 3, 2 / 3, 1, 0.8535534, 0.5, 0.1464466]),
        ("constant_with_warmup", [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ("constant", [1, 1, 1, 1, 1, 1]),
    ],
)
def test_it_rises_by_equal_parts_and_then_takes_its_shape(kind, expected):
    assert [factor(step, 2, 6, kind) for step in range(6)] == pytest.approx(expected)


def test_a_run_of_one_step_trains(tiny_qwen2, tmp_path):
    trainer = a_trainer(a_plan(tiny_qwen2, schedule={"max_steps": 1}), tmp_path, packs([[20, 30]] * 4))
    before = {name: value.clone() for name, value in trainer.model.named_parameters() if value.requires_grad}
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "seconds" in entry]
    assert rates == [pytest.approx(2.5e-3)]
    assert any(not value.equal(before[name]) for name, value in trainer.model.named_parameters() if name in before)
