"""FP8 weights rounded for what calibration rows put into their layers, instead of each to the nearest.

llm-compressor rounds to the nearest; a weight that is moved to an FP8 number beforehand stays there, since the largest
weight of a row is one already and gives the row the same scale again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from adaptft.exporting.reference import standing_on
from adaptft.exporting.rows import ExportRows
from adaptft.exporting.trained_scales import Peaks, kept_scale
from adaptft.kernels.rounding import quantize_rows_for
from adaptft.kernels.watching import Watched
from adaptft.plans import ExportPlan


@torch.no_grad()
def fit(model: Any, plan: ExportPlan, rows: ExportRows, trained: Peaks) -> None:
    """Move each weight of ``model`` that will be in FP8 to the number it is to be rounded to, in place.

    Args:
        trained: largest weights of the rows whose FP8 scales training computed with, which are kept.
    """
    assert rows.calibration is not None
    layers = dict(_compressed(model, plan))
    with standing_on(model, rows.device) as running:
        with Watched(layers.values()) as watched:
            for row in rows.calibration:
                running.base_model(input_ids=torch.tensor([row["input_ids"]], device=running.device), use_cache=False)
        inputs = watched.inputs(running)
        for name, layer in layers.items():
            if layer in inputs:
                scale = kept_scale(layer.weight, trained.get(name))
                rounded = quantize_rows_for(layer.weight, inputs[layer], scale)
                layer.weight.copy_(rounded.values.float() * rounded.fp8_scale)


def _compressed(model: nn.Module, plan: ExportPlan) -> Iterator[tuple[str, nn.Linear]]:
    """Names and layers that llm-compressor will take."""
    from compressed_tensors.utils import match_named_modules

    return (
        (name, module)
        for name, module in match_named_modules(model, ["Linear"], list(plan.ignored_modules))
        if type(module) is nn.Linear
    )
