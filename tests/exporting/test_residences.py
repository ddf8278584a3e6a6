"""An export made a layer at a time, with the weights on disk, is the one that is made in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_factory import random_adapter
from exports import export_here
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

CALIBRATION = {"quant_n_samples": 4, "max_length": 64}
FORMATS: dict[str, dict[str, int]] = {"merged": {}, "fp8": {}, "int8": {}, "awq": CALIBRATION, "gptq": CALIBRATION}


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llmcompressor")
    return random_adapter(tiny_qwen2, tmp_path_factory.mktemp("run") / "adapter", scale=0.03)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("format", FORMATS)
def test_the_weights_are_the_same_bit_for_bit(format: str, adapter: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"adapters": str(adapter), "accept_loss": True, **FORMATS[format]}
    made = {
        residence: export_here(residence, format=format, output_dir=str(tmp_path / residence), **options)
        for residence in ("twice", "by_layer")
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by_layer", "twice"], "nothing else is left"
    (whole, here), (layered, there) = ((report, weights(folder)) for _, report, folder in made.values())
    assert there.keys() == here.keys()
    unequal = [name for name, tensor in here.items() if not torch.equal(tensor.float(), there[name].float())]
    assert not unequal
    assert {str(tensor.dtype) for tensor in there.values()} == {str(tensor.dtype) for tensor in here.values()}
    assert layered.gate.fidelity.loss == pytest.approx(whole.gate.fidelity.loss, abs=1e-5)
    assert layered.gate.fidelity.divergence == pytest.approx(whole.gate.fidelity.divergence, abs=1e-5)
    assert layered.merge is not None
    assert layered.merge.parity.divergence < 1e-6


@pytest.mark.parametrize("format", ["merged", "fp8"])
def test_a_16_bit_base_is_widened_as_it_is_read(format: str, tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    base = tmp_path / "base"
    shutil.copytree(tiny_qwen2, base)
    AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.bfloat16).save_pretrained(base)
    options: dict[str, Any] = {
        "format": format, "adapters": str(random_adapter(base, tmp_path / "run", scale=0.03)), "accept_loss": True
    }  # fmt: skip
    _, _, here = export_here("twice", output_dir=str(tmp_path / "twice"), compute_dtype="fp32", **options)
    _, report, there = export_here("by_layer", output_dir=str(tmp_path / "by_layer"), compute_dtype="fp32", **options)
    whole, layered = weights(here), weights(there)
    assert layered.keys() == whole.keys()
    assert all(torch.equal(tensor.float(), layered[name].float()) for name, tensor in whole.items())
    assert report.merge is not None
    assert report.merge.parity.divergence < 1e-6


@pytest.mark.parametrize("format", ["fp8", "int8", "gptq"])
def test_a_compressed_export_widened_a_layer_at_a_time_measures_the_same(
    format: str, tiny_qwen2: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llmcompressor")
    options: dict[str, Any] = {"model": str(tiny_qwen2), "accept_loss": True, **FORMATS[format]}
    _, whole, _ = export_here(format=format, output_dir=str(tmp_path / "twice"), **options)
    _, once, _ = export_here("once", format=format, output_dir=str(tmp_path / "once"), **options)
    assert once.gate.fidelity == whole.gate.fidelity
    assert once.gate.answers == whole.gate.answers


def test_a_head_trained_whole_is_kept_beside_the_embedding_on_disk(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    adapter = random_adapter(tiny_qwen2, tmp_path / "run", **options)
    _, report, folder = export_here("by_layer", format="fp8", adapters=str(adapter), accept_loss=True)
    assert "lm_head.weight" in weights(folder)
    assert report.gate.fidelity.divergence < 0.05


def test_dora_is_merged_on_disk(tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    adapter = random_adapter(tiny_llama, tmp_path / "run", use_dora=True)
    _, report, _ = export_here("by_layer", format="merged", adapters=str(adapter), accept_loss=True)
    assert report.merge is not None
    assert report.merge.parity.divergence < 1e-6
