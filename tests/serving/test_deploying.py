"""Compose and Kubernetes files say what the plan says, and those in export/serving are what a plan writes today."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaptft.errors import RequestError
from adaptft.plans import ServePlan
from adaptft.serving.commands import serve_command
from adaptft.serving.deploying import FORMS, IMAGES, Form, deployment

ROOT = Path(__file__).resolve().parents[2]
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture
def on_two_gpus(serve_plan: ServePlan) -> ServePlan:
    return replace(
        serve_plan, device="cuda", dtype="bf16", gpu_indices=(1, 3), tensor_parallel_size=2, gpu_memory_utilization=0.9,
        served_model_name="Org/My_Model.v2", adapters={"a": "/ad/a"}, max_lora_rank=16, max_loras=1,
        generation_config="/ad/stops", chat_template="/ad/a/chat_template.jinja", engine_version="vllm 0.26.0",
    )  # fmt: skip


def compose(plan: ServePlan, **settings: Any) -> dict[str, Any]:
    text = deployment(plan, "compose", **{"image": None, "has_key": False, **settings})
    return yaml.safe_load(text)


def kubernetes(plan: ServePlan, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    text = deployment(plan, "kubernetes", **{"image": None, "has_key": False, **settings})
    found, service = yaml.safe_load_all(text)
    return found, service


def container(found: dict[str, Any]) -> dict[str, Any]:
    (one,) = found["spec"]["template"]["spec"]["containers"]
    return one


def test_the_engines_command_is_the_plans_but_for_the_address(on_two_gpus: ServePlan) -> None:
    wanted = serve_command(on_two_gpus)[1:]
    wanted[wanted.index("--host") + 1] = "0.0.0.0"
    service = compose(on_two_gpus)["services"]["engine"]
    assert (service["entrypoint"], service["command"]) == (["python3"], wanted)
    assert service["ports"] == ["127.0.0.1:8000:8000"], "only this machine reaches it, as with adaptft serve"
    found, _ = kubernetes(on_two_gpus)
    assert (container(found)["command"], container(found)["args"]) == (["python3"], wanted)


def test_every_file_that_the_command_names_is_mounted(on_two_gpus: ServePlan) -> None:
    files = ["/models/m", "/ad/a", "/ad/stops", "/ad/a/chat_template.jinja"]
    assert compose(on_two_gpus)["services"]["engine"]["volumes"] == [f"{file}:{file}:ro" for file in files]
    found, _ = kubernetes(on_two_gpus)
    mounts = {mount["mountPath"]: mount["name"] for mount in container(found)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in found["spec"]["template"]["spec"]["volumes"]}
    assert [*mounts] == ["/dev/shm", *files]
    kinds = [volumes[mounts[file]]["hostPath"] for file in files]
    assert [kind["path"] for kind in kinds] == files
    assert [kind["type"] for kind in kinds] == ["Directory"] * 3 + ["File"]
    assert all(DNS_LABEL.fullmatch(name) for name in volumes)


def test_the_plans_gpus_are_asked_for(on_two_gpus: ServePlan) -> None:
    service = compose(on_two_gpus)["services"]["engine"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["device_ids"], device["capabilities"]) == ("nvidia", ["1", "3"], ["gpu"])
    assert "CUDA_VISIBLE_DEVICES" not in service["environment"], "the container sees its own two, as 0 and 1"
    found, _ = kubernetes(on_two_gpus)
    assert container(found)["resources"] == {"limits": {"nvidia.com/gpu": 2}}


def test_readiness_is_asked_at_health_and_answers_in_progress_are_waited_for(on_two_gpus: ServePlan) -> None:
    found, service = kubernetes(on_two_gpus)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(found)[probe]["httpGet"] == {"path": "/health", "port": "http"}
    startup = container(found)["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] == 1800
    assert found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 35
    engine = compose(on_two_gpus)["services"]["engine"]
    assert "/health" in engine["healthcheck"]["test"][-1]
    assert engine["stop_grace_period"] == "35s"
    assert service["spec"]["selector"] == found["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == container(found)["ports"][0]["name"]
    assert DNS_LABEL.fullmatch(found["metadata"]["name"])
    assert found["metadata"]["name"] == "adaptft-my-model-v2"


@pytest.mark.parametrize("form", FORMS)
def test_a_key_stands_there_as_a_reference_only(form: Form, on_two_gpus: ServePlan) -> None:
    text = deployment(on_two_gpus, form, image=None, has_key=True)
    assert "VLLM_API_KEY" in text
    reference = {"compose": "${ADAPTFT_API_KEY:?set ADAPTFT_API_KEY}", "kubernetes": "secretKeyRef"}[form]
    assert reference in text
    assert "VLLM_API_KEY" not in deployment(on_two_gpus, form, image=None, has_key=False)


@pytest.mark.parametrize("form", FORMS)
def test_sglang_has_its_own_image_and_command(form: Form, on_two_gpus: ServePlan) -> None:
    text = deployment(replace(on_two_gpus, backend="sglang"), form, image=None, has_key=False)
    assert IMAGES["sglang"] in text
    assert "sglang.launch_server" in text


@pytest.mark.parametrize("form", FORMS)
def test_without_a_gpu_the_image_has_to_be_named(form: Form, serve_plan: ServePlan) -> None:
    with pytest.raises(RequestError, match="no official image of vllm on a CPU"):
        deployment(serve_plan, form, image=None, has_key=False)
    assert "image: mine/vllm-cpu:1" in deployment(serve_plan, form, image="mine/vllm-cpu:1", has_key=False)


@pytest.mark.parametrize("form", FORMS)
def test_dollar_signs_are_no_variables(form: Form, on_two_gpus: ServePlan) -> None:
    plan = replace(on_two_gpus, adapters={"a": "/ad/$(HOME)"})
    assert {"compose": "a=/ad/$$(HOME)", "kubernetes": "a=/ad/$$(HOME)"}[form] in deployment(
        plan, form, image=None, has_key=False
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_files_in_export_are_what_a_plan_writes(form: Form) -> None:
    """Run with ADAPTFT_UPDATE_GOLDEN=1 to write them anew."""
    words = ("serve", "qwen2.5-7b", "--as", form, "--machine", str(ROOT / "tests" / "machines" / "a10.json"))
    done = subprocess.run(
        [sys.executable, "-m", "adaptft", *words], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"ADAPTFT_API_KEY": "not-written"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not-written" not in done.stdout
    file = ROOT / "export" / "serving" / f"{form}.yaml"
    if os.environ.get("ADAPTFT_UPDATE_GOLDEN"):
        file.write_text(done.stdout)
    assert file.read_text() == done.stdout
    assert json.loads(json.dumps(list(yaml.safe_load_all(done.stdout))))
