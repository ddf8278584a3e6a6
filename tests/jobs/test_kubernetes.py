"""Manifests have the form that Kubeflow's operators publish for TrainJob and PyTorchJob, and run as a pod does."""

import os
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from planned_jobs import a_job

from adaptft.jobs.kubernetes import Pod, manifest

POD = Pod(image="registry/adaptft:1", claim="data", cpus="16", memory="200Gi")
QUANTITY = int | str
CONTAINER = {"name": str, "volumeMounts": [{"name": str, "mountPath": str}]}
POD_SPEC = {
    "terminationGracePeriodSeconds": int,
    "volumes": [{
        "name": str, "emptyDir?": {"medium": str, "sizeLimit": str}, "persistentVolumeClaim?": {"claimName": str},
    }],
}  # fmt: skip
LIMITS = {"limits": {"nvidia.com/gpu?": int, "cpu?": QUANTITY, "memory?": QUANTITY}}
RUN = {"image": str, "command": [str], "env": [{"name": str, "value": str}]}
REPLICAS = {"replicas": int, "restartPolicy": str, "template": {
    "spec": POD_SPEC | {"containers": [CONTAINER | RUN | {"resources": LIMITS}]}
}}  # fmt: skip
PATCH = {"name": str, "template": {"spec": {"template": {"spec": POD_SPEC | {"containers": [CONTAINER]}}}}}
FORMS = {  # the fields that are used, by the operators' CRDs (Trainer 2.3, training operator 1.9); ? may be absent
    "TrainJob": {
        "apiVersion": str, "kind": str, "metadata": {"name": str, "namespace?": str},
        "spec": {
            "runtimeRef": {"name": str},
            "trainer": RUN | {"numNodes": int, "resourcesPerNode": LIMITS},
            "runtimePatches": [{
                "manager": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [PATCH]}}},
            }],
        },
    },
    "PyTorchJob": {
        "apiVersion": str, "kind": str, "metadata": {"name": str, "namespace?": str},
        "spec": {
            "runPolicy": {"backoffLimit": int, "cleanPodPolicy": str},
            "pytorchReplicaSpecs": {"Master": REPLICAS, "Worker?": REPLICAS},
        },
    },
}  # fmt: skip


def check(value, form, where="job"):
    if isinstance(form, dict):
        names = {name.removesuffix("?"): (name, form[name]) for name in form}
        assert not (unknown := value.keys() - names.keys()), f"{where} has no {unknown}"
        for name, (key, inner) in names.items():
            if name in value:
                check(value[name], inner, f"{where}.{name}")
            else:
                assert key.endswith("?"), f"{where} needs {name}"
    elif isinstance(form, list):
        for number, item in enumerate(value):
            check(item, form[0], f"{where}[{number}]")
    else:
        assert isinstance(value, form), f"{where} is {value!r}"


def job(kind, nodes=2, **wished):
    return yaml.safe_load(manifest(a_job(nodes, folder="/data/output", **wished), POD, kind, "research"))


def script(found):
    spec = found["spec"]
    if found["kind"] == "TrainJob":
        return spec["trainer"]["command"][-1]
    return spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["command"][-1]


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("kind", FORMS)
def test_a_manifest_has_the_form_of_its_kind(kind, nodes):
    check(job(kind, nodes), FORMS[kind])


def test_a_train_job_asks_for_the_plans_machines_and_gpus():
    trainer = job("TrainJob", 16)["spec"]["trainer"]
    assert trainer["numNodes"] == 16
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8, "cpu": "16", "memory": "200Gi"}


@pytest.mark.parametrize(("nodes", "counts"), [(1, {"Master": 1}), (16, {"Master": 1, "Worker": 15})])
def test_a_pytorch_job_is_a_master_and_its_workers(nodes, counts):
    replicas = job("PyTorchJob", nodes)["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == counts
    assert {spec["restartPolicy"] for spec in replicas.values()} == {"OnFailure"}


@pytest.mark.parametrize("kind", FORMS)
def test_shared_memory_and_the_data_are_mounted(kind):
    text = yaml.dump(job(kind))
    assert "medium: Memory" in text
    assert "mountPath: /dev/shm" in text
    assert "claimName: data" in text


@pytest.mark.parametrize("kind", FORMS)
def test_the_plan_stands_in_the_head_of_the_file(kind):
    head = manifest(a_job(folder="/data/output"), POD, kind).split("apiVersion")[0].splitlines()
    assert all(line.startswith("# ") for line in head)
    assert "2 machines, each with 8 x NVIDIA H100" in head[0]


class Container:
    """A pod's script with an ``adaptft`` that does what the test says; its place is in the operator's variables."""

    def __init__(self, folder: Path, kind: str, adaptft: str) -> None:
        (folder / "adaptft").write_text(f"#!/bin/bash\ncd {folder}\n{adaptft}\n")
        (folder / "adaptft").chmod(0o755)
        place = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "1"}
        environment = os.environ | place | {
            "MASTER_ADDR": "h", "MASTER_PORT": "1", "PATH": f"{folder}:{os.environ['PATH']}",
        }  # fmt: skip
        text = script(yaml.safe_load(manifest(a_job(folder=str(folder)), POD, kind)))
        self.process = subprocess.Popen(["bash", "-c", text], env=environment)


FINISHED = "mkdir -p qwen2-5-7b-lora && touch qwen2-5-7b-lora/adaptft.json"


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("adaptft", "status"),
    [(f'echo "$@" > words; {FINISHED}', 0), (f"{FINISHED}; exit 3", 1), ("exit 0", 1)],
    ids=["a finished run succeeds", "a failed run fails", "a run that was stopped and saved is no success"],
)
def test_the_pods_status_is_whether_the_result_is_whole(kind, adaptft, status, tmp_path):
    assert Container(tmp_path, kind, adaptft).process.wait(20) == status
    if status == 0:
        assert (tmp_path / "words").read_text().split()[-8:] == [
            "--nnodes", "2", "--node_rank", "1", "--master_addr", "h", "--master_port", "1",
        ]  # fmt: skip


def test_sigterm_reaches_the_run_and_the_pod_waits_for_its_checkpoint(tmp_path):
    saving = "trap 'sleep 0.5; touch saved; exit 0' TERM; touch started; while true; do sleep 0.05; done"
    pod = Container(tmp_path, "TrainJob", saving).process
    while not (tmp_path / "started").exists():
        time.sleep(0.02)
    pod.terminate()
    assert pod.wait(20) == 1, "not finished: Kubernetes starts it again"
    assert (tmp_path / "saved").exists()
