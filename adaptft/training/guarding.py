"""Lets an optimizer step happen only where loss and gradient are numbers, without waiting for the GPU to say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptft.kernels.frozen_linear import FrozenLinear


def heeds_scalars(optimizer: Any) -> bool:
    """True for optimizers that heed ``grad_scale`` and ``found_inf`` on the device, as for a gradient scaler."""
    return getattr(optimizer, "_step_supports_amp_scaling", False) is True


def guard_step(optimizer: Any, parameters: Sequence[nn.Parameter], norm: Tensor | float, loss: Tensor | None) -> None:
    """Make the next ``optimizer.step()`` change nothing where ``norm`` or ``loss`` is no number.

    torch's fused optimizers look at ``found_inf`` on the device, as they do for a gradient scaler; that costs no
    waiting. Others are given no gradients, for which the host has to know the numbers first.

    Args:
        optimizer: torch's own, below accelerate's.
        loss: summed loss of the window on this rank; None where ranks would decide differently.
    """
    total = torch.as_tensor(norm) if loss is None else torch.as_tensor(norm) + loss * 0
    is_bad = ~torch.isfinite(total)
    if is_bad.device.type == "cuda" and heeds_scalars(optimizer):
        optimizer.found_inf = is_bad.float()
        return
    if bool(is_bad):
        for parameter in parameters:
            parameter.grad = None


def broken_weight(model: nn.Module) -> str | None:
    """Name of a parameter that holds something else than numbers; None where there is none.

    Packed weights look like any numbers, or none.
    """
    for path, module in model.named_modules():
        if hasattr(module, "quant_state") or isinstance(module, FrozenLinear):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
                return f"{path}.{name}"
    return None
