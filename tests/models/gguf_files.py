"""Small GGUF files for the tests, written with the gguf package from tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
_ARCHITECTURES = {"qwen2": "QWEN2", "llama": "LLAMA"}


def write_gguf(model: Path, file: Path, /, **fields: Any) -> Path:
    """The model in the folder ``model`` as a float32 GGUF; ``fields`` override string fields of its metadata."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((model / "config.json").read_text())
    kind = config["model_type"]
    writer = gguf.GGUFWriter(file, kind)
    writer.add_name(f"tiny {kind}")
    writer.add_file_type(0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, model, config, fields)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[_ARCHITECTURES[kind]], config["num_hidden_layers"])
    for name, weight in load_file(model / "model.safetensors").items():
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            weight = _interleaved(weight, config["num_attention_heads" if "q_" in name else "num_key_value_heads"])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: Any, model: Path, config: dict[str, Any], fields: dict[str, Any]) -> None:
    data = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = [""] * config["vocab_size"]
    kinds = [UNUSED] * config["vocab_size"]
    for token, index in data["model"]["vocab"].items():
        tokens[index], kinds[index] = token, NORMAL
    for added in data["added_tokens"]:
        tokens[added["id"]], kinds[added["id"]] = added["content"], CONTROL if added["special"] else USER_DEFINED
    writer.add_tokenizer_model(fields.get("model", "gpt2"))
    writer.add_tokenizer_pre(fields.get("pre", "qwen2"))
    writer.add_token_list([token or f"[PAD{index}]" for index, token in enumerate(tokens)])
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["bos_token_id"])
    writer.add_add_bos_token(fields.get("add_bos_token", False))
    writer.add_chat_template((model / "chat_template.jinja").read_text(encoding="utf-8"))
    if "scaling" in fields:
        writer.add_rope_scaling_type(fields["scaling"])


def _interleaved(weight: Any, heads: int) -> Any:
    """llama.cpp keeps the two rotary halves of a head's rows interleaved."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()
