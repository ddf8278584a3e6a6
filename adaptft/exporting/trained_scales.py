"""FP8 exports of adapters that were trained beside an FP8 base: its rows keep the scales that training computed with.

Training quantised each row of a base weight to e4m3 with the scale ``max|row| / 448``. Merging moves a row's largest
weight a little; a new scale would move every other weight of the row to another grid than the adapter learnt beside.
The trained scale stays wherever the merged row still fits it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from adaptft.kernels.quantize import E4M3_MAX

_BY_PEFT = "base_model.model."

Peaks = dict[str, torch.Tensor]


def row_peaks(adapted: nn.Module) -> Peaks:
    """Largest magnitude of each row [out, 1] of the base weights under adapters, before these are merged."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = ((name, layer) for name, layer in adapted.named_modules() if isinstance(layer, BaseTunerLayer))
    bases = ((name.removeprefix(_BY_PEFT), layer.get_base_layer()) for name, layer in layers)
    return {name: _peaks(base.weight) for name, base in bases if isinstance(base, nn.Linear)}


def keep_trained_scales(model: nn.Module, trained: Peaks) -> tuple[int, int]:
    """Put the trained scales back into a model that llm-compressor has given its own; -> rows kept, of how many."""
    from compressed_tensors.offload import update_offload_parameter

    kept = total = 0
    for name, peaks in trained.items():
        module: Any = model.get_submodule(name)
        if getattr(module, "weight_scale", None) is None:
            continue
        scale = module.weight_scale.detach()
        fits = _peaks(module.weight).to(peaks.device) <= peaks
        old = (peaks / E4M3_MAX).to(scale)
        update_offload_parameter(module, "weight_scale", torch.where(fits.to(scale.device), old, scale))
        kept, total = kept + int(fits.sum()), total + fits.numel()
    return kept, total


def kept_scale(weight: torch.Tensor, trained: torch.Tensor | None) -> torch.Tensor | None:
    """The scales [out, 1] to round the merged rows of ``weight`` with; None where nothing of training's is known.

    Args:
        trained: the largest magnitudes of the rows before merging.
    """
    if trained is None:
        return None
    own, trained = _peaks(weight), trained.to(weight.device)
    return torch.where(own <= trained, trained, own) / E4M3_MAX


def _peaks(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().float().abs().amax(dim=1, keepdim=True)
