"""The plan pages of the recorded machines, as a user reads them. Run with ADAPTFT_UPDATE_GOLDEN=1 to accept them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from adaptft import models, shapes
from adaptft.cli.screens import render_plan
from adaptft.facts import DatasetShape
from adaptft.hardware import read_machine
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest

FOLDER = Path(__file__).parent
MACHINES = sorted((FOLDER.parent / "machines").glob("*.json"))
ALIAS = "qwen2.5-7b"
GSM8K = DatasetShape(
    num_rows=7473, num_tokens=1_450_000, num_trained_tokens=910_000, longest_row_tokens=546, sources=("gsm8k.jsonl",)
)


def page(machine: Path, train_type: str) -> str:
    request = TrainRequest(model=ALIAS, train_type=train_type, given=("model", "train_type"))
    model = shapes.model_shape(models.read_config(ALIAS), ALIAS)
    text = io.StringIO()
    console = Console(file=text, width=80, highlight=False, color_system=None)
    console.print(render_plan(plan_training(read_machine(machine), model, GSM8K, request)))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("train_type", ["full", "lora", "qlora"])
@pytest.mark.parametrize("machine", MACHINES, ids=lambda path: path.stem)
def test_the_plan_page_changes_only_on_purpose(machine, train_type):
    now, golden = page(machine, train_type), FOLDER / f"{machine.stem}-{train_type}.txt"
    if os.environ.get("ADAPTFT_UPDATE_GOLDEN"):
        golden.write_text(now, encoding="utf-8")
    assert now == golden.read_text(encoding="utf-8")


def test_no_page_is_left_of_a_machine_that_is_gone():
    pages = {f"{machine.stem}-{kind}" for machine in MACHINES for kind in ("full", "lora", "qlora")}
    assert {path.stem for path in FOLDER.glob("*.txt")} == pages
