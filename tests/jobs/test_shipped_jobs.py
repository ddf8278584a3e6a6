"""The jobs in examples/jobs are what adaptft writes. Run with ADAPTFT_UPDATE_GOLDEN=1 to write them again."""

import os
from pathlib import Path

import pytest
from planned_jobs import ALIAS, MACHINES

from adaptft import models, parsing, shapes
from adaptft.facts import DatasetShape
from adaptft.hardware import read_machine
from adaptft.jobs import job_of
from adaptft.jobs.kubernetes import Pod, manifest
from adaptft.jobs.ray import driver
from adaptft.jobs.slurm import sbatch_script
from adaptft.policy import plan_training
from adaptft.requests import TrainRequest

ROOT = Path(__file__).parents[2]
WISHES = {"dataset": "/data/gsm8k.jsonl", "global_batch_size": "32", "nnodes": "2"}
DATA = DatasetShape(num_rows=7473, num_tokens=1_450_000, num_trained_tokens=910_000, longest_row_tokens=546)
POD = Pod(image="registry.example.org/adaptft:0.1.0", claim="data")
SHIPPED = {
    "slurm.sbatch": lambda job: sbatch_script(job, setup=("source venv/bin/activate",)),
    "trainjob.yaml": lambda job: manifest(job, POD, "TrainJob"),
    "pytorchjob.yaml": lambda job: manifest(job, POD, "PyTorchJob"),
    "ray.py": lambda job: driver(job, cpus=1),
}


@pytest.fixture(scope="module")
def job():
    request = parsing.parse_request(TrainRequest, WISHES, ROOT / "recipes" / "qwen2.5-7b-lora.yaml").request
    shape = shapes.model_shape(models.read_config(ALIAS), ALIAS)
    return job_of(plan_training(read_machine(MACHINES / "h100x8.json"), shape, DATA, request), folder="/data/output")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_job_is_the_one_that_is_written(name, job):
    path = ROOT / "examples" / "jobs" / name
    text = SHIPPED[name](job)
    if os.environ.get("ADAPTFT_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text
