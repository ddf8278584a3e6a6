"""Plan pages of machines with several GPUs for models that one of them cannot hold; see ``test_plan_pages``."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from adaptft import models, shapes
from adaptft.cli.screens import render_plan
from adaptft.facts import DatasetShape
from adaptft.hardware import read_machine
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest

FOLDER = Path(__file__).parent / "sharded"
MACHINES = FOLDER.parents[1] / "machines"
DATA = DatasetShape(
    num_rows=50_000, num_tokens=35_000_000, num_trained_tokens=20_000_000, longest_row_tokens=2000, sources=("chat",)
)
JOBS = {
    "full-7b": ("qwen2.5-7b", "full"),
    "full-14b": ("qwen2.5-14b", "full"),
    "lora-72b": ("qwen2.5-72b", "lora"),
    "qlora-72b": ("qwen2.5-72b", "qlora"),
}
ONE_MACHINE = ("a100x8-nvlink", "h100x8", "h200x8", "l4x8-pcie", "4090x4", "a10x2-pcie")
PLACES = {name: (name, None) for name in ONE_MACHINE} | {"h100x8-16-machines": ("h100x8", 16)}
# what an expert would do: (strategy, base storage), or None where it does not fit
NVLINKED = {"full-7b": "fsdp2 fp32", "full-14b": "fsdp2 fp32", "qlora-72b": "ddp nf4"}
WANTED = {
    "a100x8-nvlink": NVLINKED | {"lora-72b": "fsdp2 bf16"},
    "h100x8": NVLINKED | {"lora-72b": "fsdp2 fp8"},
    "h200x8": NVLINKED | {"lora-72b": "ddp fp8"},  # 70 GiB on each: only gradients of adapters travel
    "h100x8-16-machines": NVLINKED
    | {"lora-72b": "fsdp2 fp8", "full-7b": "zero2 fp32", "full-14b": "zero2 fp32"},  # fewer gathers over the network
    "l4x8-pcie": {"full-7b": "fsdp2 fp32", "full-14b": None, "lora-72b": None, "qlora-72b": "fsdp2 nf4"},
    "4090x4": {"full-7b": "fsdp2 bf16", "full-14b": None, "lora-72b": None, "qlora-72b": "fsdp2 nf4"},
    "a10x2-pcie": {"full-7b": None, "full-14b": None, "lora-72b": None, "qlora-72b": None},
}
CASES = [(place, job) for place in PLACES for job in JOBS]


def plan(place: str, job: str) -> TrainPlan:
    (machine, nodes), (alias, train_type) = PLACES[place], JOBS[job]
    request = TrainRequest(model=alias, train_type=train_type, nnodes=nodes, given=("model", "train_type"))
    model = shapes.model_shape(models.read_config(alias), alias)
    return plan_training(read_machine(MACHINES / f"{machine}.json"), model, DATA, request)


@pytest.mark.parametrize(("place", "job"), CASES)
def test_the_page_changes_only_on_purpose(place, job):
    text = io.StringIO()
    console = Console(file=text, width=100, highlight=False, color_system=None)
    console.print(render_plan(plan(place, job)))
    now = "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
    golden = FOLDER / f"{place}-{job}.txt"
    if os.environ.get("ADAPTFT_UPDATE_GOLDEN"):
        golden.write_text(now, encoding="utf-8")
    assert now == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(("place", "job"), CASES)
def test_the_strategy_is_what_an_expert_would_take_and_found_in_time(place, job):
    begin = time.process_time()
    made = plan(place, job)
    assert time.process_time() - begin < 4  # 2 on a core whose other thread is idle
    strategy, storage = made.decisions.placement.value.strategy, made.decisions.method.value.base_storage
    assert (f"{strategy} {storage}" if made.fits else None) == WANTED[place][job]
    assert made.fits or any(rejected.is_way_out for rejected in made.rejected)


def test_no_page_is_left_of_a_case_that_is_gone():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {f"{place}-{job}" for place, job in CASES}
