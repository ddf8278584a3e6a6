"""What the serving plan decides beside vLLM on one GPU: SGLang, the KV cache's type, parsers of tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from policy_machines import QWEN_7B, machine

from adaptft.errors import MissingPackage, RequestError
from adaptft.facts import ServedModel, ServingEngine
from adaptft.plans import ServePlan
from adaptft.policy.endpoints import plan_serving
from adaptft.requests import ServeRequest
from adaptft.serving.commands import sglang_command, vllm_command
from adaptft.serving.tool_parsers import SGLANG_PARSERS, tool_parser

VLLM = ServingEngine(backend="vllm", package="vllm", version="0.26.0", python="/env/bin/python", device="cuda")
SGLANG = replace(VLLM, backend="sglang", package="sglang", version="0.5.16")
SERVED = ServedModel(model_path="/models/m", name="m")


def plan(*, on: tuple[str, ...] = ("l40s",), served: ServedModel = SERVED, **wishes: Any) -> ServePlan:
    engines = (VLLM, SGLANG)
    return plan_serving(machine(*on), QWEN_7B, ServeRequest(model="m", **wishes), served=served, engines=engines)


def flag(command: list[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


def test_sglang_gets_the_same_decisions_under_its_own_names() -> None:
    served = replace(SERVED, tool_parser="hermes", chat_template="/ad/t.jinja")
    made = plan(on=("l4", "l4"), served=served, infer_backend="sglang", kv_cache_dtype="fp8", port=9000)
    by_vllm = plan(on=("l4", "l4"), served=served, infer_backend="vllm", kv_cache_dtype="fp8", port=9000)
    assert replace(made, backend="vllm", engine_version=None, reasons={}) == replace(
        by_vllm, request=made.request, engine_version=None, reasons={}
    )
    command = sglang_command(made)
    assert command[:3] == ["/env/bin/python", "-m", "sglang.launch_server"]
    assert {name: flag(command, name) for name in command if name.startswith("--")} == {
        "--model-path": "/models/m", "--served-model-name": "m", "--host": "127.0.0.1", "--port": "9000",
        "--dtype": "bfloat16", "--context-length": str(made.max_model_len), "--chat-template": "/ad/t.jinja",
        "--mem-fraction-static": str(made.gpu_memory_utilization), "--kv-cache-dtype": "fp8_e4m3",
        "--tool-call-parser": "qwen25",
    } | ({"--tp-size": "2"} if made.tensor_parallel_size == 2 else {})  # fmt: skip


def test_sglangs_adapters_are_named_and_their_slots_are_the_plans() -> None:
    made = replace(
        plan(infer_backend="sglang"), adapters={"a": "/ad/a", "b": "/ad/lr=1"}, max_lora_rank=32, max_loras=2
    )
    command = sglang_command(made)
    assert "--enable-lora" in command
    assert (flag(command, "--max-lora-rank"), flag(command, "--max-loras-per-batch")) == ("32", "2")
    assert command[command.index("--lora-paths") + 1 :] == [
        "a=/ad/a", '{"lora_name": "b", "lora_path": "/ad/lr=1", "pinned": false}'
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"on": ()}, "it needs a GPU"),
        ({"api_key": "s3cret"}, "takes keys on its command line only"),
        ({"served": replace(SERVED, generation_config="/joined")}, "stop at tokens that the base's"),
    ],
)
def test_what_sglang_cannot_be_told_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises((RequestError, MissingPackage)) as refusal:
        plan(infer_backend="sglang", **settings)
    assert problem in refusal.value.problem or "SGLang is not installed" in refusal.value.problem
    assert "s3cret" not in str(refusal.value)


def test_sglang_that_is_missing_is_named_with_its_pip_line() -> None:
    with pytest.raises(MissingPackage, match="SGLang is not installed") as refusal:
        plan_serving(
            machine("l40s"), QWEN_7B, ServeRequest(model="m", infer_backend="sglang"), served=SERVED, engines=(VLLM,)
        )
    assert "pip install sglang" in refusal.value.fix


@pytest.mark.parametrize(
    ("on", "wish", "has_scales", "dtype", "reason"),
    [
        ("l40s", None, False, "auto", "--kv_cache_dtype fp8) holds twice the tokens"),
        ("l40s", None, True, "fp8", "calibrated scales"),
        ("l40s", "auto", True, "auto", "asked for"),
        ("l40s", "fp8", False, "fp8", "half the memory a token"),
        ("a10", None, True, "auto", "FP8 needs compute capability 8.9, NVIDIA A10"),
    ],
)
def test_the_type_of_the_kv_cache(on: str, wish: Any, has_scales: bool, dtype: str, reason: str) -> None:
    made = plan(on=(on,), served=replace(SERVED, has_kv_scales=has_scales), kv_cache_dtype=wish)
    assert made.kv_cache_dtype == dtype
    assert reason in made.reasons["kv_cache_dtype"]
    per_token = 2 * 28 * 4 * 128
    assert made.kv_cache_bytes_per_token == per_token * (1 if dtype == "fp8" else 2)
    assert flag(vllm_command(made), "--kv-cache-dtype") == ("fp8" if dtype == "fp8" else None)


def test_an_fp8_cache_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match=r"compute capability 8\.9, NVIDIA A10 has 8\.6"):
        plan(on=("a10",), kv_cache_dtype="fp8")


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        ("{% if tools %}<tools>...</tools> <tool_call>{{ call | tojson }}</tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function={{ name }}></function></tool_call>{% endif %}", "qwen3_coder"),
        ("{% if tools is not none %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<|python_tag|>", "llama3_json"),
        ("{% if tools %}in a form of its own{% endif %}", None),
        ("{{ messages }}", None),
        (None, None),
    ],
)
def test_tool_calls_are_parsed_as_the_template_writes_them(template: str | None, parser: str | None) -> None:
    assert tool_parser(template) == parser
    assert parser is None or parser in SGLANG_PARSERS
    command = vllm_command(plan(served=replace(SERVED, tool_parser=parser)))
    assert flag(command, "--tool-call-parser") == parser
    assert ("--enable-auto-tool-choice" in command) == (parser is not None)
