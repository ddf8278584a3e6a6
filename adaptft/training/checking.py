"""A look at the installed loss before it is trained on: a few tokens, through the model as it stands."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device

from adaptft.plans import DTYPE_NAMES, TrainPlan
from adaptft.training import losses
from adaptft.training.arguments import autocast_dtype
from adaptft.training.batches import boundaries

CHECK_TOKENS = 16


def check_planned_loss(plan: TrainPlan, model: Any) -> None:
    """Compare the planned loss of ``model`` with its own logits', where it is another computation.

    All ranks must call it where ``model`` is in shards.

    Raises:
        TrainingError: they disagree.
    """
    if plan.decisions.loss.value.kernel != "chunked":
        return
    device = next(model.parameters()).device
    positions = np.arange(CHECK_TOKENS)[None]
    tokens = torch.from_numpy(positions).to(device)
    inputs: dict[str, Any] = {"input_ids": tokens, "labels": tokens.roll(-1, 1), "position_ids": tokens}
    if plan.decisions.attention.value.implementation == "varlen":
        inputs |= send_to_device(boundaries(positions), device)
    dtype = "fp32" if plan.decisions.placement.value.is_sharded else autocast_dtype(plan.decisions)  # shards cast
    casting = torch.autocast(device.type, getattr(torch, DTYPE_NAMES[dtype])) if dtype != "fp32" else nullcontext()
    with casting:
        losses.check_loss(model, inputs)
