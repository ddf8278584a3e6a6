"""A small real tokenizer with any chat template, and a cache of its own for every test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from adaptft import data

TEMPLATES = Path(__file__).parent.parent / "templates"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "<think>\nThe answer to the question is this.\n</think>\n\n",
    "system user assistant model tool_call tool_response",
    '{"name": "get_stock", "arguments": {"sku": "K-17"}}',
    "Question: What is it?\n\nAnswer: It is that one.\n\n",
]


def build_tokenizer(*, prefix_space: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE as Qwen's and Llama 3's, with some merges so that seams can move."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ADAPTFT_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def tokenizer_with() -> Callable[[str | None], Any]:
    """The tokenizer with the template of that name (tests/templates)."""

    def make(template: str | None, *, prefix_space: bool = False) -> Any:
        tokenizer = build_tokenizer(prefix_space=prefix_space)
        tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text() if template else None
        return tokenizer

    return make


class Read:
    """Tokenised rows with what tests ask of them."""

    def __init__(self, tokenized: data.TokenizedData, tokenizer: Any) -> None:
        self.tokenized, self.tokenizer = tokenized, tokenizer
        self.report, self.sample = tokenized.report, tokenized.sample
        self.rows = list(tokenized.rows)

    def texts(self) -> list[str]:
        return [self.tokenizer.decode(row["input_ids"]) for row in self.rows]

    def trained(self, index: int = 0) -> list[str]:
        """The stretches of a row that are in the loss."""
        stretches: list[list[int]] = []
        before = False
        for token, trained in zip(self.rows[index]["input_ids"], self.rows[index]["trained"], strict=True):
            if trained and not before:
                stretches.append([])
            if trained:
                stretches[-1].append(token)
            before = trained
        return [self.tokenizer.decode(ids) for ids in stretches]

    def answers(self) -> list[str]:
        """The last trained stretch of every row."""
        return [self.trained(index)[-1] for index in range(len(self.rows))]

    def before_last_answer(self, index: int = 0) -> list[int]:
        row = self.rows[index]
        trained = row["trained"]
        last = max(i for i, t in enumerate(trained) if t)
        start = max((i for i in range(last) if not trained[i]), default=-1) + 1
        return row["input_ids"][:start]

    def rejected(self) -> dict[str, tuple[int, ...]]:
        return {rows.reason: rows.first_lines for rows in self.report.rejected}


@pytest.fixture
def read(tmp_path: Path, tokenizer_with: Callable[[str | None], Any]) -> Callable[..., Read]:
    """Tokenise a file, or rows that are written to one, with any number of bad rows allowed."""

    def run(source: Path | list[Any], template: str | None = "qwen2.5", **settings: Any) -> Read:
        if isinstance(source, list):
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in source), encoding="utf-8")
        else:
            path = source
        tokenizer = template if not isinstance(template, str | None) else tokenizer_with(template)
        given = {"max_bad_rows": 1.0, "num_proc": 1, **settings}
        return Read(data.tokenize(data.DataSettings(sources=(str(path),), **given), tokenizer), tokenizer)

    return run
