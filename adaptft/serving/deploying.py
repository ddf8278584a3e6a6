"""A serving plan as files for Docker Compose and Kubernetes; ``adaptft serve --print --as compose`` prints them.

The engine's command, GPUs, environment and files on disk are the plan's own, in the engine's official image;
readiness is asked at /health, and both wait as long for answers in progress as ``adaptft serve`` does.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml

from adaptft.errors import RequestError
from adaptft.plans import ServePlan
from adaptft.serving.commands import DRAIN_SECONDS, KEY_VARIABLE, serve_command, serve_environment

Form = Literal["compose", "kubernetes"]
FORMS: tuple[Form, ...] = ("compose", "kubernetes")

IMAGES = {"vllm": "vllm/vllm-openai:v0.26.0", "sglang": "lmsysorg/sglang:v0.5.16"}
"""The engines' own images, for GPUs. vLLM's version is the one that was seen to serve our exports."""
START_SECONDS = 1800
_POLL_SECONDS = 10
_HUB_CACHE = "/root/.cache/huggingface"
_KEY = "ADAPTFT_API_KEY"


def deployment(plan: ServePlan, form: Form, *, image: str | None, has_key: bool) -> str:
    """The file's text.

    Args:
        image: taken in place of the engine's own.
        has_key: clients must send a key, which stands in the file as a reference only.

    Raises:
        RequestError: there is no image for the plan's engine, and none is named.
    """
    image = image or (IMAGES.get(plan.backend) if plan.device == "cuda" else None)
    if image is None:
        where = "on a CPU" if plan.device == "cpu" else "of adaptft's own server"
        raise RequestError(
            f"There is no official image of {plan.backend} {where}." if plan.device == "cpu" else f"No image {where}.",
            fix="Name one that has it: --image NAME:TAG; or plan for a GPU: --machine FILE",
        )
    written = _compose(plan, image, has_key) if form == "compose" else _kubernetes(plan, image, has_key)
    documents = written if isinstance(written, list) else [written]
    head = f"# Written by: adaptft serve {plan.request.model} --print --as {form}\n"
    return head + yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: people copy parts of such files."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out."""
        return True


def _compose(plan: ServePlan, image: str, has_key: bool) -> dict[str, Any]:
    host = f"[{plan.request.host}]" if ":" in plan.request.host else plan.request.host
    variables = _variables(plan)
    if has_key:
        variables[KEY_VARIABLE[plan.backend]] = f"${{{_KEY}:?set {_KEY}}}"
    service: dict[str, Any] = {
        "image": image,
        "entrypoint": ["python3"],
        "command": [word.replace("$", "$$") for word in _arguments(plan)],
        "environment": variables,
        "ports": [f"{host}:{plan.request.port}:{plan.request.port}"],
        "volumes": [f"{path}:{path}:ro" for path in _files(plan)] or [f"hub:{_HUB_CACHE}"],
        "ipc": "host",  # the GPUs of one model talk through shared memory
        "healthcheck": {
            "test": ["CMD", "python3", "-c", f"import urllib.request as r; r.urlopen('{_health(plan)}', timeout=5)"],
            "interval": f"{_POLL_SECONDS}s",
            "timeout": "10s",
            "retries": 3,
            "start_period": f"{START_SECONDS}s",
        },
        "stop_grace_period": f"{DRAIN_SECONDS + 5}s",
        "restart": "unless-stopped",
    }
    if plan.gpu_indices:
        device = {"driver": "nvidia", "device_ids": [str(i) for i in plan.gpu_indices], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    volumes: dict[str, Any] = {} if _files(plan) else {"volumes": {"hub": {}}}
    return {"name": _label(plan), "services": {"engine": service}} | volumes


def _kubernetes(plan: ServePlan, image: str, has_key: bool) -> list[dict[str, Any]]:
    name, labels = _label(plan), {"app": _label(plan)}
    mounts, volumes = _volumes(plan)
    variables: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in _variables(plan).items()]
    if has_key:
        reference = {"secretKeyRef": {"name": f"{name}-key", "key": _KEY}}
        variables.append({"name": KEY_VARIABLE[plan.backend], "valueFrom": reference})
    container: dict[str, Any] = {
        "name": "engine",
        "image": image,
        "command": ["python3"],
        "args": [word.replace("$(", "$$(") for word in _arguments(plan)],
        "env": variables,
        "ports": [{"name": "http", "containerPort": plan.request.port}],
        "startupProbe": _probe(failureThreshold=START_SECONDS // _POLL_SECONDS),
        "readinessProbe": _probe(failureThreshold=1),
        "livenessProbe": _probe(failureThreshold=6),
        "volumeMounts": mounts,
    }
    if plan.gpu_indices:
        container["resources"] = {"limits": {"nvidia.com/gpu": len(plan.gpu_indices)}}
    pod = {
        "terminationGracePeriodSeconds": DRAIN_SECONDS + 5,
        "enableServiceLinks": False,  # a service called vllm would set VLLM_PORT, which the engine reads
        "containers": [container],
        "volumes": volumes,
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},  # the new pod needs the old one's GPUs
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": labels},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": plan.request.port, "targetPort": "http"}]},
        },
    ]


def _probe(**settings: int) -> dict[str, Any]:
    request = {"path": "/health", "port": "http"}
    return {"httpGet": request, "periodSeconds": _POLL_SECONDS, "timeoutSeconds": 10, **settings}


def _volumes(plan: ServePlan) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Weights lie on the node, at the paths that the plan has; a model of a hub is fetched into the pod."""
    mounts: list[dict[str, Any]] = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    files = _files(plan)
    for number, path in enumerate(files):
        mounts.append({"name": f"files-{number}", "mountPath": path, "readOnly": True})
        kind = "File" if Path(path).suffix == ".jinja" else "Directory"
        volumes.append({"name": f"files-{number}", "hostPath": {"path": path, "type": kind}})
    if not files:
        mounts.append({"name": "hub", "mountPath": _HUB_CACHE})
        volumes.append({"name": "hub", "emptyDir": {}})
    return mounts, volumes


def _arguments(plan: ServePlan) -> list[str]:
    """What follows ``python3``; the engine listens on all addresses of its container, and only the host binds one."""
    inside = replace(plan, request=replace(plan.request, host="0.0.0.0"))
    return serve_command(inside)[1:]


def _variables(plan: ServePlan) -> dict[str, str]:
    """The engine's environment; which GPUs it sees is the runtime's affair."""
    variables = serve_environment(plan, {}, api_key=None)
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables


def _files(plan: ServePlan) -> list[str]:
    """Everything on disk that the command names; nothing for a model of a hub without adapters."""
    named = (plan.model_path, *plan.adapters.values(), plan.generation_config, plan.chat_template)
    return list(dict.fromkeys(path for path in named if path and Path(path).is_absolute()))


def _health(plan: ServePlan) -> str:
    return f"http://127.0.0.1:{plan.request.port}/health"


def _label(plan: ServePlan) -> str:
    """A name that Compose and Kubernetes take: lower case, digits and hyphens, a letter first, at most 40."""
    last = plan.served_model_name.rstrip("/").rpartition("/")[2].lower()
    return f"adaptft-{re.sub(r'[^a-z0-9]+', '-', last).strip('-')}"[:40].rstrip("-")
