"""A wider model that computes the same: real weights at the sizes where FP8 pays.

python benchmarks/widen.py MODEL OUT [--times 4]

Every hidden unit, MLP unit and attention head is there several times (Net2Net, Chen et al. 2016): matrices are tiled
and divided by the number of copies, so that each sum over copies is what it was. For Llama, Mistral, Qwen2 and Qwen3;
what it is good for is `fp8_loss.py --ways lora qlora`, since adapters start at random and differ between the copies.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
WIDENED = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=4)
    options = parser.parse_args()
    widen(options.model, options.out, options.times)


def widen(source: Path, out: Path, times: int) -> None:
    """Write the model of ``source``, ``times`` as wide, and its tokenizer to ``out``."""
    config = AutoConfig.from_pretrained(source)
    if config.model_type not in FAMILIES:
        raise SystemExit(f"{config.model_type} is none of {', '.join(FAMILIES)}.")
    weights = AutoModelForCausalLM.from_pretrained(source, dtype="auto").state_dict()
    config.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for name in WIDENED:
        setattr(config, name, getattr(config, name) * times)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict({name: widened(name, weight, times) for name, weight in weights.items()}, assign=True)
    model.tie_weights()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


def widened(name: str, weight: Tensor, times: int) -> Tensor:
    """One tensor of the wider model; the last norm makes up for the head's sum over the copies."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):  # of a head, which stays as wide as it is
        return weight
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return weight.repeat(1, times)
    if name == "model.norm.weight":
        return weight.repeat(times) / times
    return weight.repeat(times) if weight.dim() == 1 else weight.repeat(times, times) / times


if __name__ == "__main__":
    main()
