"""Models loaded for use: bases, adapters on them, and quantised exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import models_factory
import pytest
from models_factory import IM_END

from adaptft.errors import ModelError
from adaptft.models import load_for_inference, save_companions


def _adapter(base: Path, folder: Path) -> Any:
    """A LoRA adapter of random weights for ``base``, saved in ``folder``; returns the adapted model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = get_peft_model(model, config)
    adapted.save_pretrained(folder)
    return adapted.eval()


def _logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.arange(40)[None]).logits


@pytest.mark.parametrize("dtype", ["float32", "fp32", "bf16"])
def test_a_base_is_loaded_in_the_type_asked_for(dtype: str, tiny_moe: Path) -> None:
    import torch

    model, tokenizer = load_for_inference(tiny_moe, device="cpu", dtype=dtype)
    assert model.dtype == (torch.bfloat16 if dtype == "bf16" else torch.float32)
    assert not model.training
    assert tokenizer.pad_token is not None


def test_an_adapter_is_put_on_its_base_with_its_own_stop_tokens(tiny_qwen2: Path, tmp_path: Path) -> None:
    import torch

    adapted = _adapter(tiny_qwen2, tmp_path / "adapter")
    save_companions(tiny_qwen2, tmp_path / "adapter", extra_eos=(7,))
    model, tokenizer = load_for_inference(tiny_qwen2, adapters=tmp_path / "adapter", device="cpu", dtype="float32")
    assert torch.equal(_logits(model), _logits(adapted))
    assert 7 in model.generation_config.eos_token_id
    assert IM_END in model.generation_config.eos_token_id
    assert Path(tokenizer.name_or_path) == tmp_path / "adapter"


def test_an_adapter_of_another_model_is_refused_with_its_base(tiny_qwen2: Path, tiny_moe: Path, tmp_path: Path) -> None:
    _adapter(tiny_qwen2, tmp_path)
    from models_factory import build

    other = build("tiny-qwen2", tmp_path / "other", hidden_size=128, intermediate_size=256)
    with pytest.raises(ModelError, match="does not fit the model") as caught:
        load_for_inference(other, adapters=tmp_path, device="cpu", dtype="float32")
    assert str(tiny_qwen2) in caught.value.fix
    assert "\n" not in caught.value.problem


def test_an_adapter_with_more_layers_than_the_model_is_refused(tiny_qwen2: Path, tmp_path: Path) -> None:
    shallow = models_factory.build("tiny-qwen2", tmp_path / "shallow", num_hidden_layers=2)
    _adapter(tiny_qwen2, tmp_path / "adapter")
    with pytest.raises(ModelError, match="weights for layers that the model lacks, such as") as caught:
        load_for_inference(shallow, adapters=tmp_path / "adapter", device="cpu", dtype="float32")
    assert "does not fit" in caught.value.problem
    assert "--model" in caught.value.fix


def test_a_folder_that_is_no_adapter_is_refused(tiny_qwen2: Path, tiny_llama: Path) -> None:
    with pytest.raises(ModelError, match="is no adapter folder"):
        load_for_inference(tiny_qwen2, adapters=tiny_llama, device="cpu", dtype="float32")


def test_weights_of_another_shape_than_the_config_are_refused(tiny_qwen2: Path, tmp_path: Path) -> None:
    for file in tiny_qwen2.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tiny_qwen2 / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 768}))
    with pytest.raises(ModelError, match="Cannot load the model"):
        load_for_inference(tmp_path, device="cpu", dtype="float32")


def test_a_compressed_tensors_export_is_loaded(tiny_qwen2: Path, tmp_path: Path) -> None:
    pytest.importorskip("llmcompressor")
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    wanted = _logits(model)
    scheme = QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head"])
    oneshot(model=model, recipe=scheme)
    model.save_pretrained(tmp_path, save_compressed=True)
    save_companions(tiny_qwen2, tmp_path)
    loaded, _ = load_for_inference(tmp_path, device="cpu", dtype="float32")
    difference = (_logits(loaded) - wanted).abs().max()
    assert 0 < difference < 0.1 * wanted.abs().max()  # quantised, and still the same model


def test_a_checkpoint_that_lacks_weights_is_refused_and_they_are_named(tiny_llama: Path, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    folder = tmp_path / "cut"
    shutil.copytree(tiny_llama, folder)
    weights = load_file(folder / "model.safetensors")
    lost = [name for name in sorted(weights) if ".layers.1.mlp." in name]
    kept = {name: weight for name, weight in weights.items() if name not in lost}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as refusal:
        load_for_inference(folder, device="cpu", dtype="float32")
    assert "lacks weights that config.json asks for" in refusal.value.problem
    assert lost[0] in refusal.value.problem
    assert len(str(refusal.value).splitlines()) == 2
