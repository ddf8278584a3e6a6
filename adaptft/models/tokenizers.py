"""Tokenizers: loading, the padding token, and the tokens that end a turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adaptft.errors import ModelError
from adaptft.models.folders import check_tokenizer_files, read_optional

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MISTRAL_TYPES = frozenset({"mistral", "mistral3", "voxtral", "ministral", "pixtral"})
_PADDING = ("<|finetune_right_pad_id|>", "<|pad|>", "<pad>", "[PAD]", "<unk>")
_MARK = "QZ9mark9ZQ"


def load_tokenizer(path: Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer in ``path``, with a padding token.

    transformers warns of a wrong regex ("fix_mistral_regex") for every large vocabulary whose config.json has no
    transformers_version. It concerns Mistral's models alone, so for all others the flag is given as False: the
    tokenizer stays as it is, and the warning does not come.

    Raises:
        ModelError: there is no tokenizer that transformers can load.
    """
    from transformers import AutoTokenizer

    check_tokenizer_files(path)
    flags = {} if _model_type(path) in _MISTRAL_TYPES else {"fix_mistral_regex": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, **flags)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError, RecursionError) as cause:
        raise ModelError(
            f"Cannot load the tokenizer in {path}: {next(iter(str(cause).splitlines()), type(cause).__name__)}.",
            fix="Copy the tokenizer files of the model that it was made from into the folder.",
        ) from cause
    if tokenizer.pad_token is None:
        vocabulary = tokenizer.get_vocab()
        tokenizer.pad_token = next((token for token in _PADDING if token in vocabulary), tokenizer.eos_token)
    return tokenizer


def end_of_turn_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the special token that ends an answer in the chat template, found by rendering one.

    Empty where there is no template, or where it ends answers with plain text. A template that closes an answer
    only by opening the next turn (GLM) gives that token.

    Raises:
        ModelError: the template cannot be rendered.
    """
    if not tokenizer.chat_template:
        return ()
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": _MARK}]
    for conversation in (turns, [*turns, {"role": "user", "content": "B"}]):
        after = _render(tokenizer, conversation).rpartition(_MARK)[2]
        ids = tokenizer.encode(after, add_special_tokens=False)
        special = [index for index in ids if index in _special_ids(tokenizer)]
        if special:
            return (special[0],)
    return ()


def _render(tokenizer: PreTrainedTokenizerBase, conversation: list[dict[str, str]]) -> str:
    from jinja2 import TemplateError

    try:
        return str(tokenizer.apply_chat_template(conversation, tokenize=False))
    except TemplateError as cause:
        raise ModelError(
            f"The chat template of {tokenizer.name_or_path} cannot be rendered: {cause}.",
            fix="Put a working chat_template.jinja into the model folder.",
        ) from cause


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of added tokens: control tokens, whether or not the tokenizer calls them special."""
    return set(tokenizer.added_tokens_decoder) | set(tokenizer.all_special_ids)


def _model_type(path: Path) -> str | None:
    return read_optional(path / "config.json").get("model_type")
