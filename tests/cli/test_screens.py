"""The plan page and the run page: everything in them, at every width, with and without colour."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from sample_plan import PLAN

from adaptft.artifacts import plan_text
from adaptft.cli.screens import render_plan, render_run
from adaptft.records import from_dict
from adaptft.reports import Comparison, DataReport, RunReport, StepMetrics


def page(renderable, width=100, **kwargs) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **kwargs)
    console.print(renderable)
    return console.file.getvalue()


def words(text: str) -> str:
    return " ".join(re.sub(r"[│─]", " ", text).split())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_screen(width):
    assert max(len(line) for line in page(render_plan(PLAN, ["a note"]), width).splitlines()) <= width


def test_the_page_shows_every_decision_with_its_reason_and_who_took_it():
    text = words(page(render_plan(PLAN), width=400))
    for field in dataclasses.fields(PLAN.decisions):
        decision = getattr(PLAN.decisions, field.name)
        assert f"{decision.source} {decision.reason}" in text
        assert field.name in text


def test_the_page_shows_memory_by_part_and_the_total_against_the_capacity():
    text = words(page(render_plan(PLAN)))
    assert "20.0 GiB of 23.0 GiB, 87%" in text
    assert re.search(r"activations 12\.4 GiB █+", text)
    assert re.search(r"free 3\.0 GiB ░+", text)
    assert "workspace" not in text


def test_the_page_shows_what_was_not_taken_warnings_and_notes():
    text = words(page(render_plan(PLAN, ["template: x changes nothing."]), width=200))
    assert "micro_batch_size 8: needs 31.8 GiB, 23.0 GiB are free" in text
    assert "! 12 rows are longer than max_length" in text
    assert "- template: x changes nothing." in text


def test_a_plan_that_does_not_fit_says_so_in_its_first_line():
    plan = dataclasses.replace(PLAN, fits=False)
    assert page(render_plan(plan)).splitlines()[0].strip() == "Training plan: qwen2.5-7b, qlora: does not fit"


def test_assumed_data_is_called_assumed():
    plan = dataclasses.replace(PLAN, dataset=dataclasses.replace(PLAN.dataset, assumed=True))
    assert "(assumed, not measured)" in words(page(render_plan(plan), width=200))


def test_the_page_says_the_same_without_colour():
    coloured = page(render_plan(PLAN), force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == page(render_plan(PLAN))


def test_plan_json_begins_with_version_and_verdict_and_reads_back():
    import json

    from adaptft import __version__
    from adaptft.plans import TrainPlan

    data = json.loads(plan_text(PLAN))
    assert list(data)[:2] == ["adaptft", "fits"]
    assert data["adaptft"] == __version__
    assert data["memory"]["peak_bytes"] == PLAN.memory.peak_bytes
    assert from_dict(TrainPlan, data) == PLAN


def test_the_run_page_compares_with_the_plan_and_says_what_to_do_next():
    steps = tuple(
        StepMetrics(step=n, loss=2.0 - n / 10, learning_rate=1e-4, gradient_norm=1.0, num_tokens=100, seconds=0.5)
        for n in range(1, 4)
    )
    report = RunReport(
        steps=steps,
        initial_eval_loss=2.1,
        final_eval_loss=1.7,
        total_seconds=12.0,
        tokens_per_second=200.0,
        num_tokens=300,
        peak_memory=Comparison(predicted=11 * 1024**3, measured=10 * 1024**3),
        step_seconds=None,
        first_step_seconds=0.7,
        input_wait_share=0.0,
        data=DataReport(dialect="alpaca", num_accepted=10, num_rejected=0),
    )
    text = words(page(render_run(PLAN, report, Path("output/x")), width=200))
    assert "held-out rows 2.1000 -> 1.7000" in text
    assert "10.0 GiB, predicted 11.0 GiB (+10%)" in text
    assert "adaptft serve --model qwen2.5-7b --adapters output/x" in text
    assert "output/x/report.json" in text
