"""A plan as a driver for ``ray job submit``: Ray Train holds the machines, adaptft starts the ranks on each."""

from __future__ import annotations

from adaptft.jobs.job import Job

MOST_FAILURES = 3
DRIVER = '''\
{head}
import os
import subprocess

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

NODES = {nodes}
RESOURCES = {resources!r}
PORT = 29500
COMMAND = [
{command}
]


def one_machine():
    """Runs on each machine; Ray has told the workers where the first one is."""
    rank = ray.train.get_context().get_world_rank()
    place = ["--nnodes", str(NODES), "--node_rank", str(rank)]
    place += ["--master_addr", os.environ["MASTER_ADDR"], "--master_port", str(PORT)]
    subprocess.run([*COMMAND, *(place if NODES > 1 else [])], check=True)


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
    head = "".join(f"# {line}\n" for line in job.summary)
    command = "\n".join(f"    {word!r}," for word in job.words)
    return DRIVER.format(head=head, nodes=job.nodes, resources=resources, command=command, failures=MOST_FAILURES)
