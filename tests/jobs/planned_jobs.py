"""Jobs of real plans, for recorded machines."""

from __future__ import annotations

from pathlib import Path

from adaptft import models, shapes
from adaptft.facts import DatasetShape
from adaptft.hardware import read_machine
from adaptft.jobs import Job, job_of
from adaptft.plans import TrainPlan
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest

MACHINES = Path(__file__).parents[1] / "machines"
ALIAS = "qwen2.5-7b"
DATA = DatasetShape(num_rows=7473, num_tokens=1_450_000, num_trained_tokens=910_000, longest_row_tokens=546)


def a_plan(nodes: int = 2, machine: str = "h100x8", **wished: object) -> TrainPlan:
    """The plan for ``nodes`` of a recorded machine."""
    given = {"model": ALIAS, "train_type": "lora", "global_batch_size": 128, "nnodes": nodes} | wished
    request = TrainRequest(**given, given=tuple(sorted(given)))  # type: ignore[arg-type]
    model = shapes.model_shape(models.read_config(ALIAS), ALIAS)
    return plan_training(read_machine(MACHINES / f"{machine}.json"), model, DATA, request)


def a_job(nodes: int = 2, machine: str = "h100x8", folder: str = "output", **wished: object) -> Job:
    return job_of(a_plan(nodes, machine, **wished), folder=folder)
