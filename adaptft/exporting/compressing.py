"""Compressing through llm-compressor: one recipe a format, applied in place, saved as compressed-tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaptft.facts import ModelShape
from adaptft.plans import ExportPlan
from adaptft.policy.devices import Device
from adaptft.policy.format_table import FORMATS
from adaptft.requests import ExportFormat

_GRID: dict[Device, int] = {"cuda": 20, "cpu": 10}
"""Scales that AWQ tries for each group of layers, each on all calibration rows: nearly all of its time. 20 is
llm-compressor's own number, with which 32 rows of SmolLM2-135M took 560 s of a CPU core."""


def compress(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: ExportPlan, rows: Dataset | None) -> int:
    """Compress ``model`` in place as ``plan`` says.

    Args:
        rows: calibration rows with ``input_ids``, none longer than ``plan.max_length``; taken where the
            format's scales depend on them.

    Returns:
        The number of linear layers of the model, compressed or not, experts counted one by one.
    """
    from llmcompressor import oneshot

    data: dict[str, Any] = {}
    if rows is not None and FORMATS[plan.format].needs_calibration:
        masked = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in rows["input_ids"]]
        data = {
            "dataset": Dataset.from_list(masked),
            "num_calibration_samples": len(masked),
            "max_seq_length": plan.max_length,
            "shuffle_calibration_samples": False,
        }
    with _cpu_only() if plan.device == "cpu" else contextlib.nullcontext():
        oneshot(model=model, processor=tokenizer, recipe=_RECIPES[plan.format](plan), **data)
    return sum(isinstance(module, nn.Linear) for module in model.modules())


def _plain(scheme: str) -> Callable[[ExportPlan], list[Any]]:
    def recipe(plan: ExportPlan) -> list[Any]:
        from llmcompressor.modifiers.quantization import QuantizationModifier

        return [QuantizationModifier(targets="Linear", scheme=scheme, ignore=list(plan.ignored_modules))]

    return recipe


def _awq(plan: ExportPlan) -> list[Any]:
    """AWQ only rescales the channels; the second modifier rounds them."""
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    groups = _four_bit(plan)
    return [
        AWQModifier(duo_scaling="both", n_grid=_GRID[plan.device], mappings=_awq_mappings(plan.model)),
        QuantizationModifier(config_groups=groups, ignore=list(plan.ignored_modules)),
    ]


def _awq_mappings(model: ModelShape) -> list[Any] | None:
    """Which layer's scales go into which; None takes llm-compressor's own table.

    Its row for mixtures of experts (0.14) divides the norm before the MLP for the router and the routed
    experts alone: a shared expert would then see other numbers, and dense layers in between stop it. For
    those models the norm is left alone.
    """
    if model.moe is None or (len(model.moe.layers) == model.num_layers and not model.moe.shared_intermediate_size):
        return None
    from llmcompressor.modifiers.transform.awq import AWQMapping

    return [
        AWQMapping("re:.*input_layernorm$", ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"]),
        AWQMapping("re:.*v_proj$", ["re:.*o_proj$"]),
        AWQMapping("re:.*up_proj$", ["re:.*down_proj$"]),
    ]


def _gptq(plan: ExportPlan) -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier

    return [GPTQModifier(config_groups=_four_bit(plan), ignore=list(plan.ignored_modules))]


def _four_bit(plan: ExportPlan) -> dict[str, Any]:
    weights = {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": plan.group_size,
        "symmetric": plan.symmetric,
    }
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


_RECIPES: dict[ExportFormat, Callable[[ExportPlan], list[Any]]] = {
    "fp8": _plain("FP8_DYNAMIC"),
    "fp8-block": _plain("FP8_BLOCK"),
    "int8": _plain("W8A8"),
    "awq": _awq,
    "gptq": _gptq,
}


@contextlib.contextmanager
def _cpu_only() -> Iterator[None]:
    """Keep llm-compressor on the CPU.

    It takes an accelerator wherever it sees one, whatever the plan says; and its AWQ (0.13 to 0.14.0.1)
    pins memory without asking whether there is one to pin it for, which raises on a machine without.
    """
    from compressed_tensors.utils import patch_attr
    from llmcompressor.pipelines.cache import IntermediatesCache

    with (
        patch_attr(torch.accelerator, "is_available", lambda: False),
        patch_attr(IntermediatesCache, "pin_memory", lambda *_, **__: None),
    ):
        yield
