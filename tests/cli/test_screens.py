"""The plan page and the run page: everything in them, at every width, with and without colour."""

import dataclasses
import io
import re

import pytest
from rich.console import Console
from sample_plan import PLAN

from adaptft.artifacts import plan_text
from adaptft.cli.screens import render_plan
from adaptft.records import from_dict


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
