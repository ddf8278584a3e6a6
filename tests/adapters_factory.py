"""Adapters for the tests: random weights on a tiny model, as a run of adaptft or of another program leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from adaptft.artifacts import Artifact, write_artifact
from adaptft.models import fingerprint

ATTENTION_AND_MLP = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def random_adapter(base: Path, folder: Path, *, is_ours: bool = True, scale: float = 0.1, **options: Any) -> Path:
    """A LoRA whose B is not zero, saved to ``folder``; ``is_ours`` adds adaptft.json and the companions."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION_AND_MLP, "task_type": "CAUSAL_LM", **options}
    adapted = get_peft_model(model, LoraConfig(**settings))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=scale)
    adapted.save_pretrained(folder)
    if is_ours:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            shutil.copyfile(base / name, folder / name)
        write_artifact(folder, artifact_of(base))
    return folder


def artifact_of(base: Path, **departures: Any) -> Artifact:
    """What an adapter on ``base`` says of itself."""
    fields = {
        "kind": "adapter", "adaptft": "0.1.0", "base_model": base.name, "base_path": str(base),
        "base_fingerprint": fingerprint(base), "train_type": "lora",
    }  # fmt: skip
    return Artifact(**{**fields, **departures})
