"""The loss of a loaded model on tokenised rows, in little memory: logits exist for some hundred tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptft.errors import DataError
from adaptft.reports import perplexity
from adaptft.units import MiB

LOGIT_BYTES = 256 * MiB
"""Memory of one chunk of fp32 logits: 441 tokens of a vocabulary of 152,064."""
_BATCH_TOKENS = {"cuda": 16384, "cpu": 2048}
"""Tokens (padding counted) a batch holds at most; a longer row is a batch of its own."""
_AFTER_THE_HEAD: dict[str, Callable[[Tensor, float], Tensor]] = {
    "final_logit_softcapping": lambda logits, cap: torch.tanh(logits / cap) * cap,
    "logits_scaling": lambda logits, scale: logits / scale,
    "logit_scale": lambda logits, scale: logits * scale,
}
"""Config fields by which Gemma, Granite and Cohere change the logits (transformers 5.17, their modelling files)."""


class Score(NamedTuple):
    """Mean loss in nats over ``num_tokens`` trained tokens."""

    loss: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that overflows."""
        return perplexity(self.loss)


class NextTokens(NamedTuple):
    """N predicted tokens: what the head sees [N, H], fp32 logits [N, V], and the tokens that follow [N]."""

    hidden: Tensor
    logits: Tensor
    targets: Tensor

    def losses(self) -> Tensor:
        """Cross-entropy of each token in nats [N]."""
        return functional.cross_entropy(self.logits, self.targets, reduction="none")


class _Batch(NamedTuple):
    """Rows padded on the right, all [B, T]; ``targets`` are the next tokens, -100 where untrained."""

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> _Batch:
        return _Batch(*(part.to(device) for part in self))


def score(
    model: nn.Module,
    rows: Sequence[dict[str, Any]],
    *,
    batch_size: int | None = None,
    logit_bytes: int = LOGIT_BYTES,
) -> Score:
    """Loss of ``model``, where it stands, on ``rows``: each with ``input_ids`` and a ``trained`` flag a token.

    Every trained token weighs the same, whatever row it is in. The first token of a row is never a
    target: nothing predicts it. Losses are taken in fp32 and summed in fp64.

    Args:
        batch_size: rows at a time at most; None lets the number of tokens decide.
        logit_bytes: memory that the logits may take at a time.

    Raises:
        DataError: no row has a trained token.
    """
    total, count = 0.0, 0
    for part in next_tokens(model, rows, batch_size=batch_size, logit_bytes=logit_bytes):
        total += part.losses().double().sum().item()
        count += len(part.targets)
    return Score(total / count, count)


def next_tokens(
    model: nn.Module,
    rows: Sequence[dict[str, Any]],
    *,
    batch_size: int | None = None,
    logit_bytes: int = LOGIT_BYTES,
) -> Iterator[NextTokens]:
    """What ``model`` predicts for every trained token of ``rows``, some hundred at a time.

    The order depends on the rows alone, so that two models can be compared token by token.

    Raises:
        DataError: no row has a trained token.
    """
    device = next(model.parameters()).device
    was_training, is_empty = model.training, True
    model.eval()
    try:
        with torch.no_grad():
            for batch in _batches(rows, batch_size, _BATCH_TOKENS.get(device.type, 2048)):
                for part in _predictions(model, batch.to(device), logit_bytes):
                    is_empty = False
                    yield part
    finally:
        model.train(was_training)
    if is_empty:
        raise DataError("No row has a trained token to evaluate.", fix="Check that the rows hold answers.")


def _batches(rows: Sequence[dict[str, Any]], batch_size: int | None, max_tokens: int) -> Iterator[_Batch]:
    """Rows of like length together, longest first: little padding, and too little memory shows at once."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
    batch: list[dict[str, Any]] = []
    for index in order:
        row = rows[index]
        is_full = batch and (len(batch) + 1) * len(batch[0]["input_ids"]) > max_tokens
        if is_full or (batch_size is not None and len(batch) == batch_size):
            yield _pad(batch)
            batch = []
        batch.append(row)
    if batch:
        yield _pad(batch)


def _pad(rows: list[dict[str, Any]]) -> _Batch:
    shape = (len(rows), max(len(row["input_ids"]) for row in rows))
    batch = _Batch(
        torch.zeros(shape, dtype=torch.long),
        torch.zeros(shape, dtype=torch.long),
        torch.full(shape, -100, dtype=torch.long),
    )
    for i, row in enumerate(rows):
        ids = torch.as_tensor(row["input_ids"], dtype=torch.long)
        trained = torch.as_tensor(row["trained"], dtype=torch.bool)
        batch.input_ids[i, : len(ids)] = ids
        batch.attention_mask[i, : len(ids)] = 1
        batch.targets[i, : len(ids) - 1] = torch.where(trained[1:], ids[1:], -100)
    return batch


def _predictions(model: nn.Module, batch: _Batch, logit_bytes: int) -> Iterator[NextTokens]:
    is_target = batch.targets != -100
    targets = batch.targets[is_target]
    if not len(targets):
        return
    hidden, head, config = _hidden_states(model, batch)
    hidden = hidden[is_target]
    chunk = max(1, logit_bytes // (4 * config.vocab_size))
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        yield NextTokens(hidden[part], head_logits(hidden[part], head, config), targets[part])


def head_logits(hidden: Tensor, head: Any, config: Any) -> Tensor:
    """fp32 logits [N, V] of what the head sees [N, H], with what some families do to them afterwards."""
    logits: Tensor = head(hidden).float()
    for field, change in _AFTER_THE_HEAD.items():
        if (value := getattr(config, field, None)) is not None:
            logits = change(logits, value)
    return logits


def head_of(model: Any) -> tuple[Any, Any]:
    """The head of a causal language model, adapted or not, and the config of its language model."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal_lm.get_output_embeddings(), causal_lm.config.get_text_config()


def _hidden_states(model: nn.Module, batch: _Batch) -> tuple[Tensor, Any, Any]:
    """What the head sees [B, T, H], the head, and the config of the language model.

    The whole model is called, for the sake of hooks on it (compressed checkpoints are widened by one), and
    asked for the logits of one position.
    """
    whole: Any = model
    causal_lm = whole.get_base_model() if hasattr(whole, "get_base_model") else whole
    seen: list[Tensor] = []
    hook = causal_lm.get_decoder().register_forward_hook(lambda _, __, output: seen.append(output.last_hidden_state))
    try:
        whole(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False, logits_to_keep=1)
    finally:
        hook.remove()
    return seen[0], *head_of(model)
