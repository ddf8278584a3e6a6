"""Whole endpoints through ``adaptft serve`` and the openai client: transformers' server, and vLLM where it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from adapters_factory import random_adapter
from local_servers import free_port

from adaptft.models import load_for_inference

pytestmark = pytest.mark.slow
openai = pytest.importorskip("openai", reason="asking an endpoint needs the extra [serve]")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    ready_line: str
    log: list[str] = field(default_factory=list)

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=120)

    def ask(self, model: str, key: str = "none", **options: object):
        options = {"max_tokens": 8, "temperature": 0, "messages": QUESTION, **options}
        return self.client(key).chat.completions.create(model=model, **options)


@contextmanager
def served(*words: object, **environment: str) -> Iterator[Running]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "adaptft", "serve", *map(str, words), "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr))
    reader.start()
    try:
        ready = process.stdout.readline()
        assert ready, "".join(log[-30:])
        yield Running(process, f"http://127.0.0.1:{port}/v1", ready, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        reader.join(timeout=10)
    finally:
        process.terminate()
        process.wait(timeout=60)


def greedy_of_peft(base: Path, adapter: Path | None, dtype: str) -> str:
    model, tokenizer = load_for_inference(base, adapters=adapter, device="cpu", dtype=dtype)
    ids = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        said = model.generate(**ids, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(said[0, ids["input_ids"].shape[-1] :], skip_special_tokens=True)


def test_transformers_serves_a_base_and_two_adapters_under_their_names(tiny_llama: Path, tmp_path: Path) -> None:
    one = random_adapter(tiny_llama, tmp_path / "one", r=4, scale=0.5)
    two = random_adapter(tiny_llama, tmp_path / "two", r=24, scale=0.5, is_ours=False)
    folders = {"base": None, "one": one, "two": two}
    words = ("--infer_backend", "transformers", "--served_model_name", "base", "--max_model_len", "128")
    with served(tiny_llama, *words, "--adapters", f"one={one}", f"two={two}", ADAPTFT_API_KEY="s3cret") as endpoint:
        assert "serves one, two, base" in endpoint.ready_line
        listed = endpoint.client("s3cret").models.list().data
        assert [model.id for model in listed] == ["one", "two", "base"], "what was trained comes first"
        assert all(model.created > 1_700_000_000 for model in listed)
        texts = {name: endpoint.ask(name, "s3cret").choices[0].message.content for name in ("one", "base", "two")}
        with pytest.raises(openai.AuthenticationError):
            endpoint.ask("base", "wrong")
        with pytest.raises(openai.NotFoundError):
            endpoint.ask("nobody", "s3cret")
        with pytest.raises(openai.BadRequestError):
            endpoint.ask("base", "s3cret", messages=[{"role": "user", "content": "word " * 200}])
        short = endpoint.ask("base", "s3cret", max_tokens=openai.omit, max_completion_tokens=3)
        streamed = endpoint.ask("one", "s3cret", stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed]
    dtype = next(line.split()[1] for line in endpoint.log if line.startswith("dtype"))
    assert texts == {name: greedy_of_peft(tiny_llama, folder, dtype) for name, folder in folders.items()}
    assert len(set(texts.values())) == 3, "each name has its own weights"
    assert short.usage.completion_tokens == 3
    assert short.choices[0].finish_reason == "length"
    assert "".join(pieces).strip() == texts["one"].strip()
    assert "s3cret" not in "".join(endpoint.log)


def test_an_engine_that_cannot_load_its_model_ends_in_two_lines(tiny_qwen2: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(tiny_qwen2, wrong)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps(config | {"intermediate_size": 768}))
    words = ("serve", wrong, "--infer_backend", "transformers", "--port", free_port())
    done = subprocess.run(
        [sys.executable, "-m", "adaptft", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    error, way_out = done.stderr.splitlines()[-2:]
    assert error.startswith("Error: transformers' own server did not start; it ended by itself (exit code 1): ")
    assert "Cannot load the model" in error
    assert way_out.startswith("Fix:")


@pytest.mark.skipif("ADAPTFT_VLLM_PYTHON" not in os.environ, reason="ADAPTFT_VLLM_PYTHON names no vLLM environment")
def test_vllm_serves_smollm2_and_an_adapter(smollm2: Path, tmp_path: Path) -> None:
    adapter = random_adapter(smollm2, tmp_path / "same", r=24, scale=0.0)
    words = ("--vllm_python", os.environ["ADAPTFT_VLLM_PYTHON"], "--served_model_name", "smol", "--max_model_len", 512)
    with served(smollm2, *words, "--adapters", f"same={adapter}", ADAPTFT_API_KEY="s3cret") as endpoint:
        assert [model.id for model in endpoint.client("s3cret").models.list().data] == ["smol", "same"]
        for name in ("smol", "same"):
            choice = endpoint.ask(name, "s3cret", max_tokens=30).choices[0]
            assert "Paris" in choice.message.content
            assert choice.finish_reason == "stop"
        with pytest.raises(openai.AuthenticationError):
            endpoint.ask("smol", "wrong")
