"""A serving plan as a command line and an environment; tested without any engine.

vLLM is started by its module: the ``vllm`` command of the CPU build asks for the metadata of a package that
is not there. It takes temperatures from generation_config.json and overlooks ``do_sample: false``, so that is said to
it as a temperature of 0. Keys never stand on a command line, where every user of the machine can read them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from adaptft.plans import DTYPE_NAMES, ServePlan
from adaptft.requests import InferBackend
from adaptft.serving.tool_parsers import SGLANG_PARSERS
from adaptft.units import GiB

VLLM_MODULE = "vllm.entrypoints.openai.api_server"
SGLANG_MODULE = "sglang.launch_server"
TRANSFORMERS_MODULE = "adaptft.serving.transformers_server"
KEY_VARIABLE: dict[InferBackend, str] = {"vllm": "VLLM_API_KEY", "transformers": "ADAPTFT_API_KEY"}
"""SGLang reads no key from its environment; the plan refuses one."""
DRAIN_SECONDS = 30
DRAINS_SINCE = (0, 32)
"""First vLLM that was seen to take --shutdown-timeout; older ones break requests off at their end."""


def serve_command(plan: ServePlan) -> list[str]:
    """The command line of ``plan``'s engine."""
    return _COMMANDS[plan.backend](plan)


def vllm_command(plan: ServePlan) -> list[str]:
    """vLLM's OpenAI server as ``plan`` says."""
    options: list[tuple[str, object]] = [
        ("--tensor-parallel-size", plan.tensor_parallel_size if plan.tensor_parallel_size > 1 else None),
        ("--gpu-memory-utilization", plan.gpu_memory_utilization),
        ("--max-num-seqs", plan.max_num_seqs),
        ("--enforce-eager", True if plan.device == "cpu" else None),
        ("--generation-config", plan.generation_config),
        ("--override-generation-config", json.dumps({"temperature": 0.0}) if plan.is_greedy else None),
        ("--kv-cache-dtype", "fp8" if plan.kv_cache_dtype == "fp8" else None),
        ("--enable-auto-tool-choice", True if plan.tool_parser else None),
        ("--tool-call-parser", plan.tool_parser),
        ("--shutdown-timeout", DRAIN_SECONDS if _vllm_version(plan) >= DRAINS_SINCE else None),
    ]
    if plan.adapters:
        options += [
            ("--enable-lora", True),
            ("--max-lora-rank", plan.max_lora_rank),
            ("--max-loras", plan.max_loras),
            ("--max-cpu-loras", len(plan.adapters) if len(plan.adapters) > plan.max_loras else None),
        ]
    modules = [_lora_module(name, path) for name, path in plan.adapters.items()]
    return [*_common(plan, VLLM_MODULE), *_flags(options), *(["--lora-modules", *modules] if modules else [])]


def sglang_command(plan: ServePlan) -> list[str]:
    """SGLang's OpenAI server as ``plan`` says. Names of options: its ``server_args.py``, 0.5."""
    options: list[tuple[str, object]] = [
        ("--model-path", plan.model_path),
        ("--served-model-name", plan.served_model_name),
        ("--host", plan.request.host),
        ("--port", plan.request.port),
        ("--dtype", DTYPE_NAMES[plan.dtype]),
        ("--context-length", plan.max_model_len),
        ("--chat-template", plan.chat_template),
        ("--trust-remote-code", True if plan.request.trust_remote_code else None),
        ("--tp-size", plan.tensor_parallel_size if plan.tensor_parallel_size > 1 else None),
        ("--mem-fraction-static", plan.gpu_memory_utilization),
        ("--kv-cache-dtype", "fp8_e4m3" if plan.kv_cache_dtype == "fp8" else None),
        ("--tool-call-parser", SGLANG_PARSERS[plan.tool_parser] if plan.tool_parser else None),
    ]
    if plan.adapters:
        options += [
            ("--enable-lora", True),
            ("--max-lora-rank", plan.max_lora_rank),
            ("--max-loras-per-batch", plan.max_loras),
        ]
    modules = [_sglang_lora(name, path) for name, path in plan.adapters.items()]
    return [
        plan.python, "-m", SGLANG_MODULE, *_flags(options), *(["--lora-paths", *modules] if modules else []),
    ]  # fmt: skip


def transformers_command(plan: ServePlan) -> list[str]:
    """transformers' server, with the model's names and adapters, as ``plan`` says."""
    adapters = [_lora_module(name, path) for name, path in plan.adapters.items()]
    lora = ["--lora-modules", *adapters] if adapters else []
    return [*_common(plan, TRANSFORMERS_MODULE), "--device", plan.device, *lora]


def serve_environment(plan: ServePlan, inherited: Mapping[str, str], *, api_key: str | None) -> dict[str, str]:
    """The variables that ``plan``'s engine needs beside the ``inherited`` ones.

    ``inherited`` is read for CUDA_VISIBLE_DEVICES: the plan's GPUs are counted among those.
    """
    offline = {"HF_HUB_OFFLINE": "1"} if Path(plan.model_path).is_absolute() else {}
    key = {KEY_VARIABLE[plan.backend]: api_key} if api_key else {}
    gpus = _visible_devices(plan, inherited.get("CUDA_VISIBLE_DEVICES"))
    return {**offline, **gpus, **(_vllm_variables(plan) if plan.backend == "vllm" else {}), **key}


def child_environment(plan: ServePlan, inherited: Mapping[str, str], *, api_key: str | None) -> dict[str, str]:
    """The whole environment of the engine's process.

    Another interpreter gets its own folder first on PATH (for the build tools that it brings) and no
    PYTHONPATH of ours.
    """
    whole = dict(inherited) | serve_environment(plan, inherited, api_key=api_key)
    if plan.backend != "transformers":
        whole.pop("PYTHONPATH", None)
        whole["PATH"] = os.pathsep.join((str(Path(plan.python).parent), inherited.get("PATH", os.defpath)))
    return whole


def shell_line(plan: ServePlan, inherited: Mapping[str, str], *, api_key: str | None) -> str:
    """Environment and command as a line to paste into a shell; a key stands in it as a variable only."""
    variables = serve_environment(plan, inherited, api_key=None)
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    if api_key:
        words.append(f'{KEY_VARIABLE[plan.backend]}="$ADAPTFT_API_KEY"')
    return " ".join([*words, shlex.join(serve_command(plan))])


def _common(plan: ServePlan, module: str) -> list[str]:
    options: list[tuple[str, object]] = [
        ("--model", plan.model_path),
        ("--served-model-name", plan.served_model_name),
        ("--host", plan.request.host),
        ("--port", plan.request.port),
        ("--dtype", DTYPE_NAMES[plan.dtype]),
        ("--max-model-len", plan.max_model_len),
        ("--chat-template", plan.chat_template),
        ("--trust-remote-code", True if plan.request.trust_remote_code else None),
    ]
    return [plan.python, "-m", module, *_flags(options)]


def _flags(options: list[tuple[str, object]]) -> list[str]:
    """``True`` gives the flag alone, None leaves it out."""
    words: list[str] = []
    for name, value in options:
        if value is not None:
            words += [name] if value is True else [name, str(value)]
    return words


def _lora_module(name: str, path: str) -> str:
    """``name=path``, or JSON where vLLM would misread that form."""
    if "," in name + path or path.startswith("{") or "=" in path:
        return json.dumps({"name": name, "path": path})
    return f"{name}={path}"


def _sglang_lora(name: str, path: str) -> str:
    """``name=path``, or JSON where SGLang would cut that form at another place."""
    return json.dumps({"lora_name": name, "lora_path": path, "pinned": False}) if "=" in path else f"{name}={path}"


def _vllm_version(plan: ServePlan) -> tuple[int, ...]:
    """``"vllm 0.26.0+cu130"`` -> ``(0, 26)``; ``(0,)`` where it is not known."""
    version = (plan.engine_version or "").rpartition(" ")[2]
    numbers = version.split(".")[:2]
    return tuple(int(n) for n in numbers) if all(n.isdigit() for n in numbers) else (0,)


def _vllm_variables(plan: ServePlan) -> dict[str, str]:
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if plan.device != "cpu":
        return quiet
    return quiet | {
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, -(-plan.kv_cache_bytes // GiB))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(plan.cpu_threads),
    }


def _visible_devices(plan: ServePlan, visible: str | None) -> dict[str, str]:
    """Nothing where the engine would take the plan's GPUs anyway."""
    if plan.gpu_indices == tuple(range(len(plan.gpu_indices))):
        return {}
    names = visible.split(",") if visible else None
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[i] if names else str(i) for i in plan.gpu_indices)}


_COMMANDS: dict[InferBackend, Callable[[ServePlan], list[str]]] = {
    "vllm": vllm_command,
    "sglang": sglang_command,
    "transformers": transformers_command,
}
