"""The loss of a loaded model on tokenised rows, in little memory: logits exist for some hundred tokens at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptft.errors import DataError

_LOGIT_BYTES = 256 * 2**20
"""Memory of one chunk of fp32 logits: 442 tokens of a vocabulary of 151,936."""
_BATCH_TOKENS = {"cuda": 16384, "cpu": 2048}
"""Tokens (padding counted) a batch holds at most; a longer row is a batch of its own."""
_UNUSUAL_HEADS = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Config keys of models that change the logits after the head (Gemma, Granite, Cohere)."""


class Score(NamedTuple):
    """Mean loss in nats over ``num_tokens`` trained tokens."""

    loss: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


class _Batch(NamedTuple):
    """Rows padded on the right: ``input_ids`` and ``attention_mask`` [B, T]; ``targets`` [B, T], -100 where untrained."""

    input_ids: Tensor
    attention_mask: Tensor
    targets: Tensor


def score(model: nn.Module, rows: Sequence[dict[str, Any]], *, batch_size: int | None = None) -> Score:
    """Loss of ``model``, where it stands, on ``rows``: each with ``input_ids`` and a ``trained`` flag a token.

    Every trained token weighs the same, whatever row it is in. The first token of a row is never a
    target: nothing predicts it. Losses are taken in fp32 and summed in fp64.

    Args:
        batch_size: rows at a time at most; None lets the number of tokens decide.

    Raises:
        DataError: no row has a trained token.
    """
    device = next(model.parameters()).device
    total, count = 0.0, 0
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for batch in _batches(rows, batch_size, _BATCH_TOKENS.get(device.type, 2048)):
                losses, num_tokens = _batch_loss(model, _Batch(*(part.to(device) for part in batch)))
                total += losses
                count += num_tokens
    finally:
        model.train(was_training)
    if not count:
        raise DataError("No row has a trained token to evaluate.", fix="Check that the rows hold answers.")
    return Score(total / count, count)


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


def _batch_loss(model: nn.Module, batch: _Batch) -> tuple[float, int]:
    """Sum of the losses of the batch's targets, and how many there are."""
    is_target = batch.targets != -100
    targets = batch.targets[is_target]
    if not len(targets):
        return 0.0, 0
    if _has_unusual_head(model):
        output = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
        return _sum_of_losses(output.logits[is_target].float(), targets), len(targets)
    hidden, head = _hidden_states(model, batch)
    hidden = hidden[is_target]
    chunk = max(1, _LOGIT_BYTES // (4 * head.weight.shape[0]))
    losses = 0.0
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        losses += _sum_of_losses(head(hidden[part]).float(), targets[part])
    return losses, len(targets)


def _hidden_states(model: nn.Module, batch: _Batch) -> tuple[Tensor, Any]:
    """What the head sees [B, T, H], and the head.

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
    return seen[0], causal_lm.get_output_embeddings()


def _has_unusual_head(model: nn.Module) -> bool:
    config: Any = model.config
    return any(getattr(config.get_text_config(), key, None) for key in _UNUSUAL_HEADS)


def _sum_of_losses(logits: Tensor, targets: Tensor) -> float:
    return functional.cross_entropy(logits, targets, reduction="none").double().sum().item()
