"""Command lines and environments of serving plans; no engine is needed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adaptft.plans import ServePlan
from adaptft.serving.commands import (
    child_environment,
    serve_environment,
    shell_line,
    transformers_command,
    vllm_command,
)


def flag(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def on_gpus(plan: ServePlan, *indices: int, **changes: object) -> ServePlan:
    return replace(
        plan,
        device="cuda",
        dtype="bf16",
        gpu_indices=indices,
        tensor_parallel_size=len(indices),
        gpu_memory_utilization=0.9,
        max_num_seqs=None,
        engine_version="vllm 0.26.0+cu130",
        **changes,
    )


def test_vllm_on_the_cpu(serve_plan: ServePlan) -> None:
    assert vllm_command(serve_plan) == [
        "/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m",
        "--served-model-name", "m", "--host", "127.0.0.1", "--port", "8000", "--dtype", "float32",
        "--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager", "--shutdown-timeout", "30",
    ]  # fmt: skip
    assert serve_environment(serve_plan, {}, api_key=None) == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "2",
    }


def test_vllm_on_two_gpus(serve_plan: ServePlan) -> None:
    command = vllm_command(on_gpus(serve_plan, 0, 1))
    assert flag(command, "--tensor-parallel-size") == "2"
    assert flag(command, "--gpu-memory-utilization") == "0.9"
    assert flag(command, "--dtype") == "bfloat16"
    assert "--enforce-eager" not in command
    assert "--max-num-seqs" not in command
    assert "--shutdown-timeout" not in command, "vLLM 0.26 was not seen to take it"
    assert "--enable-lora" not in command


def test_adapters_are_served_beside_the_base(serve_plan: ServePlan) -> None:
    plan = on_gpus(serve_plan, 0, adapters={"a": "/ad/a", "b": "/ad/b"}, max_lora_rank=64, max_loras=2)
    command = vllm_command(plan)
    assert "--enable-lora" in command
    assert flag(command, "--max-lora-rank") == "64"
    assert flag(command, "--max-loras") == "2"
    assert "--max-cpu-loras" not in command
    assert command[command.index("--lora-modules") + 1 :] == ["a=/ad/a", "b=/ad/b"]
    many = {str(n): f"/ad/{n}" for n in range(20)}
    assert flag(vllm_command(replace(plan, adapters=many, max_loras=16)), "--max-cpu-loras") == "20"


def test_a_path_that_vllm_would_misread_goes_as_json(serve_plan: ServePlan) -> None:
    plan = replace(serve_plan, adapters={"a": "/ad/lr=1,r=8"}, max_lora_rank=8, max_loras=1)
    assert vllm_command(plan)[-1] == '{"name": "a", "path": "/ad/lr=1,r=8"}'


def test_stop_tokens_template_and_remote_code_are_passed_on(serve_plan: ServePlan) -> None:
    request = replace(serve_plan.request, trust_remote_code=True)
    plan = replace(serve_plan, generation_config="/ad/a", chat_template="/ad/a/chat_template.jinja", request=request)
    command = vllm_command(plan)
    assert flag(command, "--generation-config") == "/ad/a"
    assert flag(command, "--chat-template") == "/ad/a/chat_template.jinja"
    assert "--trust-remote-code" in command


def test_a_generation_config_without_sampling_is_a_temperature_of_0(serve_plan: ServePlan) -> None:
    assert flag(vllm_command(serve_plan), "--override-generation-config") is None
    greedy = vllm_command(replace(serve_plan, is_greedy=True))
    assert json.loads(flag(greedy, "--override-generation-config") or "") == {"temperature": 0.0}


def test_transformers_server(serve_plan: ServePlan) -> None:
    plan = replace(serve_plan, backend="transformers", python="/here/python", adapters={"a": "/ad/a"})
    assert transformers_command(plan) == [
        "/here/python", "-m", "adaptft.serving.transformers_server", "--model", "/models/m",
        "--served-model-name", "m", "--host", "127.0.0.1", "--port", "8000", "--dtype", "float32",
        "--max-model-len", "2048", "--device", "cpu", "--lora-modules", "a=/ad/a",
    ]  # fmt: skip
    assert serve_environment(plan, {}, api_key="k") == {"HF_HUB_OFFLINE": "1", "ADAPTFT_API_KEY": "k"}


@pytest.mark.parametrize(
    ("indices", "visible", "expected"),
    [
        ((0, 1), None, None),
        ((0, 1), "4,5", None),
        ((1,), None, "1"),
        ((1, 3), "4,5,6,7", "5,7"),
        ((1,), "GPU-aa,GPU-bb", "GPU-bb"),
    ],
)
def test_gpus_are_named_only_where_they_are_not_the_first(serve_plan, indices, visible, expected) -> None:
    inherited = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    environment = serve_environment(on_gpus(serve_plan, *indices), inherited, api_key=None)
    assert environment.get("CUDA_VISIBLE_DEVICES") == expected


def test_the_key_is_a_variable_of_the_engine_and_never_printed(serve_plan: ServePlan) -> None:
    assert child_environment(serve_plan, {}, api_key="s3cret")["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(vllm_command(serve_plan))
    line = shell_line(serve_plan, {}, api_key="s3cret")
    assert "s3cret" not in line
    assert 'VLLM_API_KEY="$ADAPTFT_API_KEY" /vllm/bin/python -m vllm' in line
    assert "VLLM_API_KEY" not in shell_line(serve_plan, {}, api_key=None)


def test_the_printed_line_is_quoted_for_a_shell(serve_plan: ServePlan) -> None:
    assert "--model '/models/my model'" in shell_line(
        replace(serve_plan, model_path="/models/my model"), {}, api_key=None
    )


def test_a_hub_id_is_not_cut_off_from_its_hub(serve_plan: ServePlan) -> None:
    assert "HF_HUB_OFFLINE" not in serve_environment(replace(serve_plan, model_path="org/model"), {}, api_key=None)


def test_vllms_own_environment_gets_its_tools_and_not_our_packages(serve_plan: ServePlan) -> None:
    environment = child_environment(serve_plan, {"PATH": "/bin", "PYTHONPATH": "/ours"}, api_key=None)
    assert environment["PATH"] == "/vllm/bin:/bin"
    assert "PYTHONPATH" not in environment
    ours = replace(serve_plan, backend="transformers")
    assert child_environment(ours, {"PATH": "/bin", "PYTHONPATH": "/ours"}, api_key=None)["PYTHONPATH"] == "/ours"
