"""The learning rate over a run: a pure factor, and the torch scheduler made of it.

transformers' warm-up begins at 0, so that the first step of a run trains nothing; ours never does.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LambdaLR


def factor(step: int, warmup_steps: int, total: int, kind: str) -> float:
    """The part of the peak learning rate that step ``step`` (counted from 0) of ``total`` takes.

    ``(step + 1) / (warmup_steps + 1)`` while it warms up; then 1 for ``constant`` kinds, and for ``cosine`` and
    ``linear`` from 1 down, which reaches 0 only behind the last step. ``constant`` has no warm-up.
    """
    if kind == "constant":
        return 1.0
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if kind == "constant_with_warmup":
        return 1.0
    done = min((step - warmup_steps) / max(total - warmup_steps, 1), 1.0)
    return 1.0 - done if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


def scheduler(optimizer: Any, warmup_steps: int, total: int, kind: str, scale: float = 1.0) -> LambdaLR:
    """``factor`` times ``scale`` on every parameter group; its state is a step count, as in any checkpoint."""
    return LambdaLR(optimizer, partial(_scaled, warmup_steps=warmup_steps, total=total, kind=kind, scale=scale))


def _scaled(step: int, warmup_steps: int, total: int, kind: str, scale: float) -> float:
    return scale * factor(step, warmup_steps, total, kind)


def planned_numbers(optimizer: Any) -> list[dict[str, Any]]:
    """What the plan says of each parameter group, before a checkpoint's optimizer is loaded over it."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def set_planned(optimizer: Any, rates: LambdaLR, planned: list[dict[str, Any]]) -> None:
    """Have a loaded optimizer follow the plan: its rate at the step where ``rates`` stands, its decay and betas.

    Of the run that the checkpoint is of these are the same numbers.
    """
    rates.base_lrs = [group["initial_lr"] for group in planned]
    for group, numbers, peak, at in zip(optimizer.param_groups, planned, rates.base_lrs, rates.lr_lambdas, strict=True):
        group.update(numbers | {"lr": peak * at(rates.last_epoch)})
    rates._last_lr = [group["lr"] for group in optimizer.param_groups]
