"""A plan as a driver for ``ray job submit``: Ray Train holds the machines, adaptft starts the ranks on each."""

from __future__ import annotations

import json
from typing import Any

from adaptft.jobs.job import Job, head

MOST_FAILURES = 3
DRIVER = '''\
{head}
import os
import subprocess

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

NODES = {nodes}
RESOURCES = {resources}
PORT = 29500
OF_RAYS_WORKER = {{"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}}
COMMAND = [
{command}
]


def one_machine():
    """Runs on each machine; Ray has told the workers where the first one is."""
    rank = ray.train.get_context().get_world_rank()
    place = ["--nnodes", str(NODES), "--node_rank", str(rank)]
    place += ["--master_addr", os.environ["MASTER_ADDR"], "--master_port", str(PORT)]
    environment = {{name: value for name, value in os.environ.items() if name not in OF_RAYS_WORKER}}
    subprocess.run([*COMMAND, *(place if NODES > 1 else [])], check=True, env=environment)


if __name__ == "__main__":
    TorchTrainer(
        one_machine,
        torch_config=TorchConfig(backend="gloo"),  # nothing of Ray's on the GPUs
        scaling_config=ScalingConfig(
            num_workers=NODES,
            use_gpu="GPU" in RESOURCES,
            resources_per_worker=RESOURCES,
            placement_strategy="STRICT_SPREAD",
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures={failures})),
    ).fit()
'''


def driver(job: Job, *, cpus: int) -> str:
    """The whole Python file.

    Args:
        cpus: CPUs that Ray sets aside on each machine.
    """
    resources = {"CPU": cpus} | ({"GPU": job.gpus_per_node} if job.gpus_per_node else {})
    command = "\n".join(f"    {_literal(word)}," for word in job.words)
    return DRIVER.format(
        head=head(job), nodes=job.nodes, resources=_literal(resources), command=command, failures=MOST_FAILURES
    )


def _literal(value: Any) -> str:
    """JSON, which Python reads as the same value: strings, numbers and what is made of them."""
    return json.dumps(value, ensure_ascii=False)
