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


def scheduler(optimizer: Any, warmup_steps: int, total: int, kind: str) -> LambdaLR:
    """``factor`` on every parameter group of ``optimizer``; its state is a step count, as in any checkpoint."""
    return LambdaLR(optimizer, partial(factor, warmup_steps=warmup_steps, total=total, kind=kind))
