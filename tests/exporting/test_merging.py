"""An adapter in its base gives the logits it gave beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_factory import random_adapter
from peft import PeftModel
from transformers import AutoModelForCausalLM

from adaptft.errors import ExportError
from adaptft.exporting.merging import load_merged

IDS = torch.arange(100, 132)[None]


def unmerged_logits(base: Path, adapter: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return adapted(IDS).logits


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True, "r": 16},
        {"use_dora": True},
        {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"]},
    ],
    ids=["lora", "rslora", "dora", "a head trained whole"],
)
def test_merged_logits_are_the_unmerged_ones(tiny_llama: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    adapter = random_adapter(tiny_llama, tmp_path / "adapter", **options)
    merged = load_merged(tiny_llama, adapter, dtype="fp32")
    base = load_merged(tiny_llama, None, dtype="fp32")
    with torch.no_grad():
        logits, before = merged(IDS).logits, base(IDS).logits
    torch.testing.assert_close(logits, unmerged_logits(tiny_llama, adapter), atol=2e-5, rtol=1e-4)
    assert (logits - before).abs().max() > 0.01
    assert not any("lora" in name for name, _ in merged.named_parameters())


def test_a_16_bit_base_is_rounded_once(tiny_llama: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.bfloat16)
    model.save_pretrained(base)
    adapter = random_adapter(tiny_llama, tmp_path / "adapter")
    merged = load_merged(base, adapter, dtype="bf16")
    exact = load_merged(base, adapter, dtype="fp32")
    for (name, weight), (_, wanted) in zip(merged.named_parameters(), exact.named_parameters(), strict=True):
        assert weight.dtype == torch.bfloat16, name
        assert torch.equal(weight, wanted.to(torch.bfloat16)), name


def test_tied_embeddings_stay_tied(tiny_qwen2: Path, tmp_path: Path) -> None:
    merged = load_merged(tiny_qwen2, random_adapter(tiny_qwen2, tmp_path / "adapter"), dtype="fp32")
    assert merged.config.tie_word_embeddings
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight


def test_a_head_trained_whole_is_no_longer_tied(tiny_qwen2: Path, tmp_path: Path) -> None:
    adapter = random_adapter(tiny_qwen2, tmp_path / "adapter", target_modules=["q_proj"], modules_to_save=["lm_head"])
    merged = load_merged(tiny_qwen2, adapter, dtype="fp32")
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not again.config.tie_word_embeddings
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, unmerged_logits(tiny_qwen2, adapter), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("departures", "problem"),
    [({"hidden_size": 128}, "size mismatch"), ({"num_hidden_layers": 2}, "28 weights for layers that the model lacks")],
    ids=["another width", "fewer layers"],
)
def test_an_adapter_of_other_shapes_is_refused(
    tiny_qwen2: Path, tmp_path: Path, departures: dict[str, Any], problem: str
) -> None:
    import models_factory

    other = models_factory.build("tiny-qwen2", tmp_path / "other", **departures)
    adapter = random_adapter(tiny_qwen2, tmp_path / "adapter")
    with pytest.raises(ExportError) as refusal:
        load_merged(other, adapter, dtype="fp32")
    assert "does not fit" in refusal.value.problem
    assert problem in refusal.value.problem
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_on_one_end_of_tied_embeddings_leaves_the_other_end(
    tiny_qwen2: Path, tmp_path: Path, target: str
) -> None:
    adapter = random_adapter(tiny_qwen2, tmp_path / "adapter", target_modules=[target], is_ours=False)
    merged = load_merged(tiny_qwen2, adapter, dtype="fp32")
    with torch.no_grad():
        torch.testing.assert_close(merged(IDS).logits, unmerged_logits(tiny_qwen2, adapter), atol=2e-5, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, unmerged_logits(tiny_qwen2, adapter), atol=2e-5, rtol=1e-4)
