"""The page after a run: every number with its basis, and commands that can be typed as they stand."""

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from sample_plan import PLAN

from adaptft.cli.run_page import render_run
from adaptft.reports import Comparison, DataReport, RunReport, StepMetrics

REPORT = RunReport(
    steps=tuple(
        StepMetrics(step=n, loss=2.0 - n / 10, learning_rate=1e-4, gradient_norm=1.0, num_tokens=100, seconds=0.5)
        for n in range(1, 4)
    ),
    initial_eval_loss=2.1,
    final_eval_loss=1.7,
    total_seconds=12.0,
    tokens_per_second=200.0,
    num_tokens=300,
    peak_memory=Comparison(predicted=11 * 1024**3, measured=10 * 1024**3),
    step_seconds=Comparison(predicted=None, measured=0.5),
    first_step_seconds=0.7,
    input_wait_share=0.0,
    data=DataReport(dialect="alpaca", num_accepted=10, num_rejected=0),
    notes=("A note.",),
)


def page(report=REPORT, plan=PLAN) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(render_run(plan, report, Path("output/x")))
    return " ".join(re.sub(r"[│─]", " ", console.file.getvalue()).split())


def asked(**changed):
    return dataclasses.replace(PLAN, request=dataclasses.replace(PLAN.request, **changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "Trained"),
        ({}, "output/x/report.json"),
        ({}, "held-out rows 2.1000 -> 1.7000"),
        ({"final_eval_loss": None}, "first step 1.9000, last step 1.7000: each on its own training rows; none were"),
        ({}, "200 tokens/s after the first two steps"),
        ({"steps": REPORT.steps[:2]}, "200 tokens/s over all steps"),
        ({}, "12.0 s with reading, loading and evaluation; 3 steps, 100 tokens each on average"),
        ({}, "Step 500 ms Memory"),
        ({"step_seconds": Comparison(predicted=1.0, measured=0.5)}, "Step 500 ms, predicted 1.0 s (+100%)"),
        ({}, "10.0 GiB, predicted 11.0 GiB (+10%)"),
        ({}, "- A note."),
        ({"was_finished": True}, "Finished before, with 3 steps: nothing was trained and nothing changed"),
    ],
)
def test_every_number_has_its_basis(changed, said):
    assert said in page(dataclasses.replace(REPORT, **changed))


def test_a_run_that_was_finished_before_shows_no_speeds():
    text = page(dataclasses.replace(REPORT, was_finished=True))
    assert "Trained" not in text
    assert "tokens/s" not in text


@pytest.mark.parametrize(
    ("plan", "command"),
    [
        (asked(), "adaptft eval --model qwen2.5-7b --adapters output/x adaptft"),
        (asked(dataset=("a.jsonl",)), "--adapters output/x --dataset HELD_OUT.jsonl adaptft"),
        (asked(dataset=("a.jsonl",), val_dataset=("b.jsonl", "c d")), "--dataset b.jsonl 'c d' adaptft"),
        (asked(dataset=("a.jsonl",)), "adaptft serve --model qwen2.5-7b --adapters output/x"),
    ],
)
def test_the_next_commands_name_the_rows_unless_the_built_in_ones_were_trained_on(plan, command):
    assert command in page(plan=plan)


def test_a_machine_without_known_speed_says_how_to_get_it_predicted():
    assert "500 ms; not predicted: adaptft bench measures what this machine does" in page(
        plan=dataclasses.replace(PLAN, speed=None)
    )


def test_commands_are_never_broken_over_lines():
    console = Console(file=io.StringIO(), width=80, highlight=False)
    folder = Path("output/" + "a-long-name/" * 12)
    console.print(render_run(PLAN, REPORT, folder), crop=False)
    lines = console.file.getvalue().splitlines()
    assert [line for line in lines if line.startswith("  adaptft ") and line.rstrip().endswith(str(folder))]
    assert len([line for line in lines if "adaptft " in line and "a-long-name" in line]) == 2
