"""adaptft serve --print and its refusals, as a process."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from adapters_factory import random_adapter

from adaptft import records
from adaptft.facts import Cpu, Gpu, HostMemory, Machine, Software
from adaptft.units import GiB


def serve(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-m", "adaptft", "serve", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def four_gpus(tmp_path: Path) -> Path:
    gpus = tuple(
        Gpu(index=i, name="L4", compute_capability=(8, 9), memory_total_bytes=22 * GiB, memory_free_bytes=22 * GiB)
        for i in range(4)
    )
    machine = Machine(
        gpus=gpus,
        cpu=Cpu(model_name="cpu", architecture="x86_64", logical_cores=8, physical_cores=4, usable_cores=8.0),
        memory=HostMemory(total_bytes=64 * GiB, available_bytes=60 * GiB),
        software=Software(python="3.12.3"),
    )
    path = tmp_path / "machine.json"
    records.write_json(path, machine)
    return path


@pytest.fixture
def config_only(tmp_path: Path) -> Path:
    """A model folder without weights: 14 heads, one KV head."""
    folder = tmp_path / "odd-heads"
    folder.mkdir()
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 1, "head_dim": 128,
        "vocab_size": 151936, "tie_word_embeddings": True, "attention_bias": False,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_plan_for_a_recorded_machine_needs_neither_weights_nor_an_engine(config_only: Path, four_gpus: Path) -> None:
    done = serve(config_only, "--print", "--machine", four_gpus)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[words.index("--max-model-len") + 1] == "40960"
    assert "--tensor-parallel-size" not in words
    assert "6,144 bytes a token" in done.stderr
    assert not [line for line in done.stderr.splitlines() if line != line.rstrip()], "no trailing blanks"
    refused = serve(config_only, "--print", "--machine", four_gpus, "--tensor_parallel_size", "4")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "14 attention heads" in refused.stderr
    assert "1, 2, 7, 14" in refused.stderr


def test_the_lora_line_of_two_adapters_and_the_refusal_of_a_third(tiny_qwen2: Path, tmp_path: Path) -> None:
    r24 = random_adapter(tiny_qwen2, tmp_path / "r24", r=24)
    pattern = random_adapter(tiny_qwen2, tmp_path / "pattern", r=8, rank_pattern={"layers.0.self_attn.q_proj": 48})
    done = serve(tiny_qwen2, "--print", "--adapters", f"a={r24}", f"b={pattern}")
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[words.index("--max-lora-rank") + 1] == "64"
    assert words[words.index("--max-loras") + 1] == "2"
    assert words[-2:] == [f"a={r24}", f"b={pattern}"]
    r600 = random_adapter(tiny_qwen2, tmp_path / "r600", r=600)
    refused = serve(tiny_qwen2, "--print", "--adapters", f"c={r600}")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "Error: Adapter c has rank 600; vLLM serves at most 512 unmerged.",
        f"Fix:   Merge it: adaptft export --adapters {r600} --format merged, then serve the result.",
    ]


def test_an_adapter_folder_brings_its_base_along_and_stops_with_its_own_tokens(tiny_qwen2: Path, tmp_path) -> None:
    adapter = random_adapter(tiny_qwen2, tmp_path / "mine")
    path = adapter / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2048, 2050, 2051]}))
    done = serve(adapter, "--print", "--infer_backend", "vllm")
    words = shlex.split(done.stdout)
    assert words[words.index("--model") + 1] == str(tiny_qwen2)
    assert words[words.index("--generation-config") + 1] == str(adapter)
    assert words[-1] == f"{adapter}={adapter}"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_sample": False}))
    assert '{"temperature": 0.0}' in shlex.split(serve(adapter, "--print").stdout)


def test_an_adapter_of_another_model_is_refused(tiny_qwen2: Path, tiny_llama: Path, tmp_path: Path) -> None:
    adapter = random_adapter(tiny_qwen2, tmp_path / "mine")
    refused = serve(tiny_llama, "--adapters", f"mine={adapter}")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 2
    assert "another model" in refused.stderr


def test_the_key_is_printed_nowhere(tiny_qwen2: Path) -> None:
    for engine, variable in (("vllm", "VLLM_API_KEY"), ("transformers", "ADAPTFT_API_KEY")):
        done = serve(tiny_qwen2, "--print", "--infer_backend", engine, ADAPTFT_API_KEY="s3cret")
        assert f'{variable}="$ADAPTFT_API_KEY"' in done.stdout
        assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "status", "problem", "fix"),
    [
        (["--infer_backend", "vlm"], 2, "vlm", "vllm"),
        (["--vllm_python", "/no/python"], 2, "--vllm-python /no/python is not a Python interpreter", "vllm-env/bin"),
        (["--vllm_python", sys.executable], 1, "has neither vLLM nor SGLang", "-m pip install vllm"),
        (["--max_model_len", "999999"], 2, "longer than", "at most 4096"),
        (["--machine", "m.json"], 2, "--machine is for plans that are shown", "--print"),
    ],
)
def test_bad_requests_give_two_lines(tiny_qwen2: Path, words, status, problem, fix) -> None:
    if sys.executable in words and any(name in sys.modules for name in ("vllm",)):
        pytest.skip("vLLM is installed here")
    done = serve(tiny_qwen2, *words)
    assert done.returncode == status, done.stderr
    error, way_out = done.stderr.splitlines()
    assert problem in error
    assert fix in way_out


def test_a_taken_port_is_refused_at_once(tiny_qwen2: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = serve(tiny_qwen2, "--infer_backend", "transformers", "--port", taken.getsockname()[1])
    assert done.returncode == 1
    error, way_out = done.stderr.splitlines()[-2:]
    assert "Address already in use" in error
    assert "--port" in way_out
    assert done.stdout == ""
