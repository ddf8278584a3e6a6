"""A GGUF file to a Hugging Face folder: transformers unpacks the weights, the rest is rebuilt from the metadata."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft import optional, quiet
from adaptft.errors import ModelError
from adaptft.home import cache_folder
from adaptft.models.gguf_tokenizer import check_tokenizer, write_tokenizer
from adaptft.models.storage import whole_folder

_FORM = 2  # raise it when a conversion comes out differently, so that old ones are not used
_STORED = {0: "float32", 1: "float16"}  # general.file_type; everything else is quantised and unpacked to bfloat16
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_NOT_CONFIG = ("quantization_config", "_model_name_or_path", "_name_or_path")
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFacts:
    """What a GGUF says of itself; ``largest_rope_divisor`` is None where it has no table of them."""

    metadata: dict[str, Any]
    num_weights: int
    largest_rope_divisor: float | None

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.metadata.get("general.architecture"))

    @property
    def dtype(self) -> str:
        """What the weights are stored in after the conversion."""
        return _STORED.get(self.metadata.get("general.file_type", -1), "bfloat16")


def convert_gguf(file: Path) -> Path:
    """The Hugging Face folder made from ``file``, from the cache where it was made before.

    Raises:
        ModelError: the file is broken, of an unsupported architecture, or has a tokenizer that is not known.
        MissingPackage: the package gguf is not installed.
        OutputError: the cache's disk is too full.
    """
    target = cache_folder("models", f"{file.stem}-{_identity(file)}")
    if target.is_dir():
        return target
    facts = read_gguf(file)
    check_tokenizer(facts.metadata, file.name)
    with whole_folder(target, needed_bytes=int(1.05 * _BYTES[facts.dtype] * facts.num_weights) + 2**25) as folder:
        with quiet.no_bars():
            _write_model(file, facts, folder)
        write_tokenizer(facts.metadata, folder)
        _write(folder / "generation_config.json", _token_ids(facts.metadata))
    return target


def read_gguf(file: Path) -> GgufFacts:
    """The fields of ``file``; its weights are not unpacked.

    Raises:
        ModelError: it is no GGUF file, or one part of several.
        MissingPackage: the package gguf is not installed.
    """
    gguf = optional.require("gguf", purpose=f"Reading {file.name}")
    if _PART.search(file.name):
        raise ModelError(
            f"{file} is one part of a GGUF in several files.", fix="Join them first: llama-gguf-split --merge"
        )
    try:
        reader = gguf.GGUFReader(file)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        divisors = next((tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
        return GgufFacts(
            metadata=metadata,
            num_weights=sum(int(tensor.n_elements) for tensor in reader.tensors),
            largest_rope_divisor=None if divisors is None else float(divisors.max()),
        )
    except (OSError, ValueError, IndexError, KeyError) as cause:
        raise ModelError(f"{file} is not a GGUF file that can be read: {cause}.", fix="Download it again.") from cause


def gguf_config(file: Path) -> dict[str, Any]:
    """What config.json would say of ``file``; the weights are not unpacked.

    Raises:
        ModelError: the file is broken or of an unsupported architecture.
    """
    from transformers import AutoConfig

    facts = read_gguf(file)
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, KeyError) as cause:
        raise _unsupported(file, facts, cause) from cause
    return _published_form(config.to_diff_dict(), facts, rope_factor=None)


def _identity(file: Path) -> str:
    """A hash of the file's size, time and first mebibyte: cheap, and different for another file of that name."""
    stat = file.stat()
    with file.open("rb") as stream:
        start = stream.read(2**20)
    return hashlib.sha256(f"{_FORM} {stat.st_size} {stat.st_mtime_ns}".encode() + start).hexdigest()[:12]


def _write_model(file: Path, facts: GgufFacts, folder: Path) -> None:
    import torch
    from huggingface_hub import save_torch_model
    from transformers import AutoModelForCausalLM

    rope_factor = _llama3_rope_factor(file, facts)
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=getattr(torch, facts.dtype), output_loading_info=True
        )
    except (ValueError, KeyError, RuntimeError) as cause:
        raise _unsupported(file, facts, cause) from cause
    absent = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
    if absent:
        raise _unsupported(file, facts, ValueError(f"it has no weights for {', '.join(absent[:3])}"))
    # of tied tensors the embedding is kept: vLLM skips the head's, and would serve an embedding never loaded
    save_torch_model(model, folder, max_shard_size="5GB", shared_tensors_to_discard=list(model.all_tied_weights_keys))
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)  # safetensors writes them for the owner alone
    config = {"architectures": [type(model).__name__], **model.config.to_diff_dict()}
    _write(folder / "config.json", _published_form(config, facts, rope_factor))


def _published_form(config: dict[str, Any], facts: GgufFacts, rope_factor: float | None) -> dict[str, Any]:
    """The config as published models write it, which transformers 4, 5 and serving engines all read."""
    published = {key: _tidy(value) for key, value in config.items() if key not in _NOT_CONFIG}
    published |= {"dtype": facts.dtype, "torch_dtype": facts.dtype} | _token_ids(facts.metadata)
    rope = published.get("rope_parameters") or {}
    if "rope_theta" in rope:
        published["rope_theta"] = rope["rope_theta"]
    if rope_factor is not None:
        scaling = _llama3_scaling(rope_factor)
        published["rope_scaling"] = scaling
        published["rope_parameters"] = rope | scaling
    return published


def _tidy(value: Any) -> Any:
    """A GGUF's 32-bit number as people write it: 9.999999747378752e-06 -> 1e-05."""
    if isinstance(value, dict):
        return {key: _tidy(inner) for key, inner in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    if ids["pad_token_id"] is None:
        ids["pad_token_id"] = ids["eos_token_id"]
    return {name: int(value) for name, value in ids.items() if value is not None}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _llama3_scaling(factor: float) -> dict[str, Any]:
    """The long-context settings that every Llama 3.1, 3.2 and 3.3 has, but for the factor."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama3_rope_factor(file: Path, facts: GgufFacts) -> float | None:
    """The factor of Llama 3.1's rotary scaling, which a GGUF keeps as divisors in ``rope_freqs.weight``.

    Raises:
        ModelError: the file scales its positions in another way, which would be lost.
    """
    kind = facts.metadata.get(f"{facts.architecture}.rope.scaling.type") or "none"
    if kind == "none" and facts.largest_rope_divisor is None:
        return None
    if kind != "none" or facts.largest_rope_divisor not in (8.0, 32.0):
        raise ModelError(
            f"{file.name} scales its positions ({kind}) in a way that the conversion would lose.",
            fix="Use the model's Hugging Face folder or hub id.",
        )
    return facts.largest_rope_divisor


def _unsupported(file: Path, facts: GgufFacts, cause: Exception) -> ModelError:
    reason = next(iter(str(cause).splitlines()), type(cause).__name__).rstrip(".")
    return ModelError(
        f"{file.name} ({facts.architecture}) cannot be converted: {reason}.",
        fix="Use the model's Hugging Face folder or hub id.",
    )
