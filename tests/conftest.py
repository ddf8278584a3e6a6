"""Models that the tests train on."""

import os
from pathlib import Path

import pytest


def _model(name: str) -> Path:
    folder = os.environ.get("ADAPTFT_TEST_MODELS")
    if not folder:
        pytest.skip("ADAPTFT_TEST_MODELS names no folder of tiny models")
    return Path(folder) / name


@pytest.fixture(scope="session")
def tiny_qwen2() -> Path:
    return _model("tiny-qwen2")


@pytest.fixture(scope="session")
def tiny_qwen3() -> Path:
    return _model("tiny-qwen3")


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    return _model("tiny-llama")


@pytest.fixture(scope="session")
def tiny_moe() -> Path:
    return _model("tiny-qwen3-moe")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return _model("smollm2-135m")
