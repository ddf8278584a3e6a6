"""The loss of a model on rows, against the plain way of computing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adapters_factory import random_adapter
from datasets import Dataset
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from adaptft.errors import DataError
from adaptft.evaluation import score

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
}  # fmt: skip


def some_rows(num_rows: int = 9) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for index in range(num_rows):
        length = 3 + 5 * index % 37
        ids = torch.randint(3, 300, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "trained": [i >= length // 2 for i in range(length)]})
    rows[0]["trained"] = [True] * len(rows[0]["trained"])  # the first token of a row is never a target
    return Dataset.from_list(rows)


def plain_loss(model: Any, rows: Dataset) -> tuple[float, int]:
    """One row at a time, all logits at once."""
    losses = []
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        trained = torch.tensor(row["trained"])[1:]
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        losses.append(functional.cross_entropy(logits, ids[0, 1:], reduction="none")[trained])
    return torch.cat(losses).mean().item(), len(torch.cat(losses))


def tiny(model_type: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, **settings})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("gemma2", {"final_logit_softcapping": 3.0, "initializer_range": 0.5}),
        ("granite", {"logits_scaling": 8.0}),
        ("cohere", {"logit_scale": 0.0625, "initializer_range": 0.5}),
    ],
)
def test_the_loss_is_that_of_all_trained_tokens_alike(model_type: str, settings: dict[str, Any]) -> None:
    model, rows = tiny(model_type, **settings), some_rows()
    loss, num_tokens = plain_loss(model, rows)
    result = score(model, rows)
    assert result.num_tokens == num_tokens
    assert result.loss == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 4, None])
def test_neither_batches_nor_pieces_of_logits_change_the_loss(batch_size: int | None) -> None:
    model, rows = tiny("llama"), some_rows()
    whole = score(model, rows)
    pieces = score(model, rows, batch_size=batch_size, logit_bytes=3 * 4 * 300)  # logits of three tokens
    assert pieces.num_tokens == whole.num_tokens
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)


def test_an_adapter_that_is_not_merged_counts(tiny_llama: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(tiny_llama)
    before = score(base, some_rows()).loss
    adapted = PeftModel.from_pretrained(base, random_adapter(tiny_llama, tmp_path / "adapter"))
    loss, _ = plain_loss(adapted, some_rows())
    assert score(adapted, some_rows()).loss == pytest.approx(loss, rel=1e-5)
    assert abs(loss - before) > 0.01


def test_perplexity_is_e_to_the_loss() -> None:
    result = score(tiny("llama"), some_rows())
    assert result.perplexity == pytest.approx(2.718281828459045**result.loss)


def test_a_model_in_training_stays_in_training() -> None:
    model = tiny("llama").train()
    score(model, some_rows())
    assert model.training


def test_rows_without_a_trained_token_are_refused() -> None:
    rows = Dataset.from_list([{"input_ids": [5, 6, 7], "trained": [True, False, False]}])
    with pytest.raises(DataError, match="No row has a trained token"):
        score(tiny("llama"), rows)
