"""The source as it was trained, remembered before it is changed, and what comes back, held beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from adaptft import quiet
from adaptft.evaluation import Observation, compare, greedy_answers, observe, prompts_of
from adaptft.exporting.rows import ExportRows
from adaptft.plans import Residence
from adaptft.policy.devices import Device
from adaptft.reports import AnswerPair, Fidelity

NUM_ANSWERS = 3
_ANSWER_TOKENS: dict[Device, int] = {"cuda": 64, "cpu": 24}
_BY_LAYER_TOKENS = 8
"""Each token reads the whole model from disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The source on the check's rows: what its head saw, and its greedy answers to the first questions."""

    observation: Observation
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[str, ...]
    num_tokens: int
    """Of each answer, at most."""


@contextmanager
def standing_on(model: Any, device: Device) -> Iterator[Any]:
    """``model`` on ``device`` for the block, and on the CPU again afterwards; quantised models stay where they are."""
    moves = device == "cuda" and model.device.type == "cpu"
    if moves:
        model.to("cuda")
    try:
        with quiet.no_bars():
            yield model
    finally:
        if moves:
            model.to("cpu")
            torch.cuda.empty_cache()


def refer(model: Any, tokenizer: PreTrainedTokenizerBase, rows: ExportRows, residence: Residence) -> Reference:
    """Remember ``model`` as the one that everything made from it is compared with."""
    num_tokens = _BY_LAYER_TOKENS if residence == "by_layer" else _ANSWER_TOKENS[rows.device]
    with standing_on(model, rows.device):
        prompts = prompts_of(list(rows.check), NUM_ANSWERS)
        return Reference(
            observation=observe(model, rows.check),
            prompts=tuple(map(tuple, prompts)),
            num_tokens=num_tokens,
            answers=tuple(_answers(model, tokenizer, prompts, num_tokens)),
        )


def parity(model: Any, rows: ExportRows, reference: Reference) -> Fidelity:
    """How far ``model``, still in memory, is from the reference."""
    with standing_on(model, rows.device):
        return compare(model, rows.check, reference.observation)


def compare_export(
    model: Any, tokenizer: PreTrainedTokenizerBase, rows: ExportRows, reference: Reference
) -> tuple[Fidelity, tuple[AnswerPair, ...]]:
    """An export that was loaded back, beside its reference: distributions, and answers to the same prompts."""
    fidelity = compare(model, rows.check, reference.observation)
    prompts = [list(prompt) for prompt in reference.prompts]
    answers = _answers(model, tokenizer, prompts, reference.num_tokens)
    texts = tokenizer.batch_decode(prompts, skip_special_tokens=True)
    pairs = zip(texts, reference.answers, answers, strict=True)
    return fidelity, tuple(AnswerPair(prompt=text.strip(), source=one, export=two) for text, one, two in pairs)


def _answers(model: Any, tokenizer: Any, prompts: list[list[int]], num_tokens: int) -> list[str]:
    return greedy_answers(model, tokenizer, prompts, max_new_tokens=num_tokens)
