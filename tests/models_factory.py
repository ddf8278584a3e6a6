"""Tiny models for the tests: random weights in real architectures, with a small real tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
VOCABULARY = 2048  # entries of the trained BPE; special tokens follow
PADDED_VOCABULARY = 2176  # as with the real Qwen, the models' tables are larger than the tokenizer

END_OF_TEXT, IM_START, IM_END = VOCABULARY, VOCABULARY + 1, VOCABULARY + 2
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# inputs of every matrix a multiple of 128 and outputs of 64, so that group size 128 and two-way splits work
_COMMON = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": PADDED_VOCABULARY, "max_position_embeddings": 4096, "hidden_act": "silu",
    "tie_word_embeddings": True, "bos_token_id": END_OF_TEXT, "eos_token_id": IM_END, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
_EXPERTS = {
    "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip

# name: (architecture, departures from _COMMON, chat template)
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "tiny-qwen2": ("Qwen2ForCausalLM", {"model_type": "qwen2"}, "qwen2.5"),
    "tiny-qwen3": ("Qwen3ForCausalLM", {"model_type": "qwen3", "head_dim": 64}, "qwen3"),
    "tiny-moe": ("Qwen3MoeForCausalLM", {"model_type": "qwen3_moe", "head_dim": 64, **_EXPERTS}, "qwen3"),
    "tiny-llama": (
        "LlamaForCausalLM",
        {"model_type": "llama", "head_dim": 64, "tie_word_embeddings": False, "rms_norm_eps": 1e-5},
        "chatml",
    ),
}


def config_of(name: str, **departures: Any) -> dict[str, Any]:
    """The config.json of a tiny model."""
    architecture, own, _ = MODELS[name]
    return {"architectures": [architecture], "torch_dtype": "float32", **_COMMON, **own, **departures}


def build(name: str, folder: Path, seed: int = 0, **departures: Any) -> Path:
    """Write the tiny model ``name`` with its tokenizer to ``folder``; ``departures`` override its config."""
    config = config_of(name, **departures)
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(config, folder, seed)
    write_tokenizer(folder, MODELS[name][2])
    write_json(folder / "config.json", config)
    stops = {"bos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT, "eos_token_id": [IM_END, END_OF_TEXT]}
    write_json(folder / "generation_config.json", {**stops, "do_sample": False})
    return folder


def write_weights(config: dict[str, Any], folder: Path, seed: int = 0) -> None:
    """Random float32 weights of the model that ``config`` describes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config["model_type"], **settings), dtype=torch.float32
    )
    model.save_pretrained(folder)


def write_tokenizer(folder: Path, template: str) -> None:
    """A byte-level BPE in Qwen's form, trained on corpus.txt, with ChatML's special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train([str(TEMPLATES / "corpus.txt")], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY, "corpus.txt is too small for the vocabulary"
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _ADDED])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    write_json(folder / "tokenizer_config.json", settings)
    text = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def change_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file; None takes a field out."""
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    write_json(path, {key: item for key, item in value.items() if item is not None})
