"""The tokenizer of a GGUF file, rebuilt so that every text falls into the same tokens as in training.

A GGUF holds the vocabulary and the merges, and only a name for how text is cut before them
(``tokenizer.ggml.pre``). transformers' own conversion ignores the name; here it decides. Names and patterns:
llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from adaptft.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|DIGITS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _pattern(regex: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return build


_LLAMA3 = _pattern(_WORDS.replace("DIGITS", r"\p{N}{1,3}"))
_QWEN2 = _pattern(_WORDS.replace("DIGITS", r"\p{N}"))
_CUTS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "gpt2": _gpt2,
    "smollm": _single_digits,
    "starcoder": _single_digits,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _pattern(_TEKKEN),
}
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "tekken"})  # a word in the vocabulary skips the merges
_COMPOSED = frozenset({"qwen2"})  # text is brought to Unicode's NFC form first


def check_tokenizer(metadata: dict[str, Any], name: str) -> None:
    """Check that the tokenizer can be rebuilt exactly.

    Raises:
        ModelError: it is of another kind than byte-level BPE, or cuts text in a way that is not in the table.
    """
    kind, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or cut not in _CUTS:
        what = f"its tokenizer is of kind {kind}" if kind != "gpt2" else f"its way to cut text is {cut}"
        raise ModelError(
            f"The tokenizer of {name} cannot be rebuilt exactly: {what}.",
            fix="Use the model's Hugging Face folder or hub id, where the tokenizer is a file of its own.",
        )


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja from a GGUF's ``metadata``."""
    tokens = _special_tokens(metadata)
    _tokenizer(metadata, tokens.get("bos_token")).save(str(folder / "tokenizer.json"))
    settings = {
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": _model_max_length(metadata),
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")
    template = metadata.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    tokens = metadata["tokenizer.ggml.tokens"]
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    if ids["pad_token"] is None:
        ids["pad_token"] = ids["eos_token"]
    return {role: tokens[index] for role, index in ids.items() if index is not None}


def _tokenizer(metadata: dict[str, Any], bos: str | None) -> Tokenizer:
    cut = metadata.get("tokenizer.ggml.pre", "gpt-2")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != _UNUSED}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut in _WHOLE_WORDS_FIRST))
    if cut in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _CUTS[cut]()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kinds[index] == _CONTROL, normalized=False)
            for index, token in enumerate(tokens)
            if kinds[index] in (_CONTROL, _USER_DEFINED)
        ]
    )
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", False):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary[bos])]
        )
    return tokenizer


def _model_max_length(metadata: dict[str, Any]) -> int:
    return int(metadata[f"{metadata['general.architecture']}.context_length"])
