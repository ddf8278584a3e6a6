"""Which of several machines: cheapest, fastest, within a budget, within a deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_machines import ALPACA, QWEN_7B

from adaptft.plans import CostEstimate, SpeedEstimate
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.policy.comparison import Limits, Option, choose, nearest, recommend
from adaptft.policy.prices import ANY_GPU, PRICES, Price
from adaptft.requests import TrainRequest

HOUR = 3600.0
REQUEST = TrainRequest(model="m", train_type="lora")
PLAN = plan_training(machine_with("a100-80g"), QWEN_7B, ALPACA, REQUEST)


def option(name: str, hours: float | None, usd: float | None, *, fits: bool = True) -> Option:
    speed = None if hours is None else SpeedEstimate(
        step_seconds=1, tokens_per_second=1, mfu=None, total_seconds=hours * HOUR
    )  # fmt: skip
    cost = None if usd is None else CostEstimate(usd_per_gpu_hour=1, total_usd=usd, price_source="test")
    return Option(name=name, plan=replace(PLAN, speed=speed, cost=cost, fits=fits))


SLOW, MIDDLE, FAST, UNPRICED = (
    option("slow", 40, 20), option("middle", 10, 30), option("fast", 2, 60), option("unpriced", 1, None),
)  # fmt: skip
ALL = (SLOW, MIDDLE, FAST, UNPRICED, option("small", 1, 1, fits=False), Option(name="odd", problem="no FP8"))


@pytest.mark.parametrize(
    ("limits", "chosen"),
    [
        (Limits(), "unpriced"),
        (Limits(budget_usd=50), "middle"),
        (Limits(budget_usd=25), "slow"),
        (Limits(budget_usd=5), None),
        (Limits(deadline_seconds=12 * HOUR), "middle"),
        (Limits(deadline_seconds=3 * HOUR), "fast"),
        (Limits(deadline_seconds=1.5 * HOUR), "unpriced"),
        (Limits(deadline_seconds=60), None),
        (Limits(budget_usd=50, deadline_seconds=12 * HOUR), "middle"),
        (Limits(budget_usd=50, deadline_seconds=5 * HOUR), None),
    ],
)
def test_the_limits_choose(limits, chosen):
    found = choose(ALL, limits)
    assert (found.name if found else None) == chosen


def test_the_advice_is_in_words_with_numbers():
    advice = {best.word: (best.name, best.reason) for best in recommend(ALL, Limits(budget_usd=50))}
    assert advice == {
        "fastest within $50.00": ("middle", "10 h 0 min, $30.00"),
        "cheapest": ("slow", "40 h 0 min, $20.00"),
        "fastest": ("unpriced", "1 h 0 min"),
        "cheapest under 24 h": ("middle", "10 h 0 min, $30.00"),
    }
    both = recommend(ALL, Limits(budget_usd=50, deadline_seconds=12 * HOUR))
    assert both[0].word == "cheapest within $50.00 and 12 h 0 min"
    assert [best.word for best in recommend((FAST,), Limits())] == ["cheapest", "fastest"]
    assert recommend((Option(name="odd", problem="no FP8"),), Limits()) == ()
    assert [best.word for best in recommend((UNPRICED,), Limits())] == ["fastest"]


def test_where_none_keeps_the_limits_the_nearest_is_named():
    assert nearest(ALL, Limits(budget_usd=5)).name == "slow"
    assert nearest(ALL, Limits(deadline_seconds=1)).name == "unpriced"
    assert nearest(ALL, Limits(budget_usd=25, deadline_seconds=5 * HOUR)).name == "middle"
    assert nearest((Option(name="odd", problem="no FP8"), option("untimed", None, None)), Limits(budget_usd=5)) is None


def test_samples_are_rows_whatever_a_sequence_holds():
    packed, rows = (
        Option(name="x", plan=plan_training(machine_with("a100-80g"), QWEN_7B, ALPACA, replace(REQUEST, packing=p)))
        for p in (True, False)
    )
    for found in (packed, rows):
        assert found.epoch_seconds * 3 == pytest.approx(found.total_seconds, rel=0.02)  # three epochs
        held_out = found.plan.decisions.schedule.value.held_out_ratio
        assert found.samples_per_second * found.epoch_seconds == pytest.approx(ALPACA.num_rows * (1 - held_out))
    # a row that is not packed is not padded either: both see the same tokens a second
    assert rows.samples_per_second == pytest.approx(packed.samples_per_second, rel=0.25)


def test_what_has_no_plan_has_no_numbers():
    none = Option(name="odd", problem="no FP8")
    numbers = (none.epoch_seconds, none.samples_per_second, none.total_seconds, none.memory_share, none.usd)
    assert numbers == (None,) * 5
    assert (none.fits, none.num_gpus, none.num_idle_gpus) == (False, 0, 0)


def test_gpus_that_a_small_step_leaves_idle_are_counted():
    few = replace(ALPACA, num_rows=100, num_tokens=28_500)
    made = Option(name="x", plan=plan_training(machine_with("8xh100"), QWEN_7B, few, REQUEST))
    assert made.num_gpus + made.num_idle_gpus == 8
    assert made.num_idle_gpus > 0


def test_the_gpus_of_all_machines_are_counted():
    request = replace(REQUEST, nnodes=2)
    made = Option(name="x", plan=plan_training(machine_with("8xh100"), QWEN_7B, ALPACA, request))
    assert (made.num_gpus, made.num_gpus_there, made.num_idle_gpus) == (16, 16, 0)


def test_a_price_of_the_users_replaces_the_tables():
    dear = plan_training(machine_with("h100"), QWEN_7B, ALPACA, REQUEST, {ANY_GPU: Price(100.0, "", "--price")})
    usual = plan_training(machine_with("h100"), QWEN_7B, ALPACA, REQUEST)
    assert dear.cost.total_usd == pytest.approx(usual.cost.total_usd * 100 / PRICES["h100"].usd_per_hour)
    assert dear.cost.price_source == "--price"
    assert "seen 2026-05-07" in usual.cost.price_source
    slice_price = {**PRICES, "h100:mig-3g.40gb": Price(1.5, "2026-11-30", "us")}
    part = plan_training(machine_with("h100:mig-3g.40gb"), QWEN_7B, ALPACA, REQUEST, slice_price)
    assert part.cost.usd_per_gpu_hour == 1.5
