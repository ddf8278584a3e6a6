"""A plan as a job of Kubeflow: a TrainJob (Trainer 2), or a PyTorchJob (training operator 1.9 and before)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from adaptft.jobs.job import Job, head, script_lines

Kind = Literal["TrainJob", "PyTorchJob"]
SHARED_MEMORY, DATA = "shared-memory", "data"
GRACE_SECONDS = 300
"""Between SIGTERM and SIGKILL where a pod is evicted: a step ends and a checkpoint is written."""
MOST_FAILURES = 6
# The shell is process 1, to which Kubernetes sends SIGTERM: it passes it on and waits. A run that was stopped has saved
# and ends with 0, which Kubernetes would take for the end: so the result decides.
SCRIPT = """\
trap '[ -n "$!" ] || exit 1; kill -TERM $!' TERM
{command} &
wait $! || wait $!
status=$?
[ "$status" -eq 0 ] && [ -e {finished} ]
"""
PLACES: dict[Kind, tuple[str, ...]] = {
    "TrainJob": ('--nnodes "$PET_NNODES"', '--node_rank "$PET_NODE_RANK"', '--master_addr "$PET_MASTER_ADDR"',
                 '--master_port "$PET_MASTER_PORT"'),
    "PyTorchJob": ('--nnodes "$PET_NNODES"', '--node_rank "$PET_NODE_RANK"', '--master_addr "$MASTER_ADDR"',
                   '--master_port "$MASTER_PORT"'),
}  # fmt: skip
"""What each operator tells a pod of its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What a pod needs beside its command. Sizes are Kubernetes quantities (``64Gi``)."""

    image: str
    claim: str
    """The PersistentVolumeClaim, shared by all pods, that holds data and results."""
    mount: str = "/data"
    shared_memory: str = "16Gi"
    """/dev/shm: NCCL and the data loader's workers need more than the 64 MiB that a container gets."""
    cpus: str | None = None
    memory: str | None = None


def manifest(job: Job, pod: Pod, kind: Kind, namespace: str | None = None) -> str:
    """The whole YAML file, the plan in its head."""
    make = {"TrainJob": _train_job, "PyTorchJob": _pytorch_job}[kind]
    metadata = {"name": job.name} | ({"namespace": namespace} if namespace else {})
    return head(job) + yaml.dump(make(job, pod) | {"metadata": metadata}, Dumper=_Blocks, sort_keys=False, width=1000)


def _train_job(job: Job, pod: Pod) -> dict[str, Any]:
    patch = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [{"name": "node", "volumeMounts": _mounts(pod)}],
        "volumes": _volumes(pod),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": pod.image,
                "numNodes": job.nodes,
                "command": ["bash", "-c", _script(job, "TrainJob")],
                "env": _environment(pod),
                "resourcesPerNode": _resources(job, pod),
            },
            "runtimePatches": [{
                "manager": "adaptft.dev/launch",
                "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
                    {"name": "node", "template": {"spec": {"template": {"spec": patch}}}}
                ]}}},
            }],
        },
    }  # fmt: skip


def _pytorch_job(job: Job, pod: Pod) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": pod.image,
        "command": ["bash", "-c", _script(job, "PyTorchJob")],
        "env": _environment(pod),
        "resources": _resources(job, pod),
        "volumeMounts": _mounts(pod),
    }
    spec = {
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": _volumes(pod),
    }
    counts = {"Master": 1} | ({"Worker": job.nodes - 1} if job.nodes > 1 else {})
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {},
        "spec": {
            "runPolicy": {"backoffLimit": MOST_FAILURES, "cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}
                for role, count in counts.items()
            },
        },
    }


def _script(job: Job, kind: Kind) -> str:
    lines = [*script_lines(job.words), *(PLACES[kind] if job.nodes > 1 else ())]
    return SCRIPT.format(command=" \\\n    ".join(lines), finished=script_lines((job.finished_file,))[0])


def _environment(pod: Pod) -> list[dict[str, str]]:
    """Models that one pod fetched are there for the others; rows are made again on each."""
    return [{"name": "PYTHONUNBUFFERED", "value": "1"}, {"name": "HF_HOME", "value": f"{pod.mount}/huggingface"}]


def _resources(job: Job, pod: Pod) -> dict[str, Any]:
    wanted: dict[str, Any] = {"nvidia.com/gpu": job.gpus_per_node} if job.gpus_per_node else {}
    wanted |= {name: value for name, value in (("cpu", pod.cpus), ("memory", pod.memory)) if value}
    return {"limits": wanted} if wanted else {}


def _mounts(pod: Pod) -> list[dict[str, str]]:
    return [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}, {"name": DATA, "mountPath": pod.mount}]


def _volumes(pod: Pod) -> list[dict[str, Any]]:
    return [
        {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": pod.shared_memory}},
        {"name": DATA, "persistentVolumeClaim": {"claimName": pod.claim}},
    ]


class _Blocks(yaml.SafeDumper):
    """Scripts as blocks that people can read; a value that stands twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never an anchor."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _text)
