"""How near a model is to the one it came from: their next-token distributions on the same rows.

The source's logits are not kept (32,768 tokens of a vocabulary of 152,064 would take 20 GB), but what its head
sees and the head itself; logits of both models then exist for some hundred tokens at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from adaptft.evaluation.scoring import head_logits, head_of, next_tokens
from adaptft.reports import Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A model on some rows: what its head saw at each trained token [N, H], on the CPU, and its mean loss."""

    hidden: Tensor
    head: nn.Module
    config: Any
    loss: float

    def log_probabilities(self, part: slice, device: torch.device) -> Tensor:
        """fp32 [n, V] of the tokens ``part``."""
        head = self.head.to(device)
        return functional.log_softmax(head_logits(self.hidden[part].to(device), head, self.config), dim=-1)


def observe(model: nn.Module, rows: Sequence[dict[str, Any]]) -> Observation:
    """Run ``model`` over ``rows`` (each with ``input_ids`` and ``trained``) and keep what its head sees.

    Raises:
        DataError: no row has a trained token.
    """
    hidden, total = [], 0.0
    for part in next_tokens(model, rows):
        hidden.append(part.hidden.cpu())
        total += part.losses().double().sum().item()
    head, config = head_of(model)
    seen = torch.cat(hidden)
    with torch.no_grad():
        own_head = copy.deepcopy(head).cpu()
    return Observation(hidden=seen, head=own_head, config=config, loss=total / len(seen))


def compare(model: nn.Module, rows: Sequence[dict[str, Any]], source: Observation) -> Fidelity:
    """Measure how far ``model`` is from ``source`` on the rows that this was observed on.

    The divergence is KL(source || model) in nats, the mean over all trained tokens; rounding may put it below 0,
    where 0 is meant.
    """
    total, divergence, equal, count = 0.0, 0.0, 0, 0
    for part in next_tokens(model, rows):
        wanted = source.log_probabilities(slice(count, count + len(part.targets)), part.logits.device)
        found = functional.log_softmax(part.logits, dim=-1)
        divergence += functional.kl_div(found, wanted, reduction="sum", log_target=True).double().item()
        equal += int((found.argmax(-1) == wanted.argmax(-1)).sum())
        total += part.losses().double().sum().item()
        count += len(part.targets)
    return Fidelity(
        source_loss=source.loss,
        loss=total / count,
        divergence=max(divergence / count, 0.0),
        top1=equal / count,
        num_tokens=count,
    )
