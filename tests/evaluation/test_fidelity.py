"""Distances between two models, against the plain way of computing them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from adaptft.evaluation import compare, observe, prompts_of

SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
}  # fmt: skip


def model(model_type: str = "qwen2", **settings: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SIZES, "initializer_range": 0.2, **settings})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def shaken(source: Any, amount: float) -> Any:
    other = copy.deepcopy(source)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=amount)
    return other


def some_rows() -> Dataset:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for length in (17, 5, 40, 9, 23):
        ids = torch.randint(3, 300, (length,), generator=generator).tolist()
        rows.append({"input_ids": ids, "trained": [i >= length // 2 for i in range(length)]})
    return Dataset.from_list(rows)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [("qwen2", {"tie_word_embeddings": True}), ("gemma2", {"final_logit_softcapping": 3.0, "initializer_range": 0.5})],
)
def test_divergence_and_top_tokens_are_the_plain_ones(model_type: str, settings: dict[str, Any]) -> None:
    source = model(model_type, **settings)
    other, rows = shaken(source, 0.02), some_rows()
    divergences, equal = [], []
    for row in rows:
        ids, trained = torch.tensor([row["input_ids"]]), torch.tensor(row["trained"])[1:]
        with torch.no_grad():
            wanted = functional.log_softmax(source(ids).logits[0, :-1][trained].double(), -1)
            found = functional.log_softmax(other(ids).logits[0, :-1][trained].double(), -1)
        divergences.append((wanted.exp() * (wanted - found)).sum(-1))
        equal.append(wanted.argmax(-1) == found.argmax(-1))
    measured = compare(other, rows, observe(source, rows))
    assert measured.divergence == pytest.approx(torch.cat(divergences).mean().item(), rel=1e-4)
    assert measured.top1 == pytest.approx(torch.cat(equal).double().mean().item())
    assert measured.num_tokens == len(torch.cat(equal))
    assert 0.001 < measured.divergence < 5
    assert measured.loss != measured.source_loss


def test_a_model_is_no_distance_from_itself_and_is_remembered_as_it_was() -> None:
    source, rows = model(), some_rows()
    before = observe(source, rows)
    same = compare(source, rows, before)
    assert same.divergence == pytest.approx(0, abs=1e-6)
    assert (same.top1, same.loss) == (1.0, same.source_loss)
    with torch.no_grad():
        source.get_output_embeddings().weight.mul_(-1)
    assert compare(source, rows, before).divergence > 0.1, "the head it had then is kept, not the one it has now"


def test_a_prompt_ends_where_training_begins_and_the_shortest_come_first() -> None:
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "trained": [False, False, False, True, True]},
        {"input_ids": [6, 7, 8], "trained": [False, True, True]},
        {"input_ids": list(range(40)), "trained": [True] * 40},
    ]
    assert prompts_of(rows, 2) == [[6], [1, 2, 3]]
    assert prompts_of(rows, 3)[2] == list(range(16)), "plain text has no question: its beginning is continued"
