"""Compressing through llm-compressor: one recipe a format, applied in place, saved as compressed-tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaptft.optional import require
from adaptft.plans import ExportPlan
from adaptft.requests import ExportFormat


def compress(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: ExportPlan, rows: Dataset | None
) -> int:
    """Compress ``model`` in place as ``plan`` says.

    Args:
        rows: calibration rows with ``input_ids``, none longer than ``plan.max_length``; None where the
            format needs none.

    Returns:
        The number of linear layers of the model, compressed or not, experts counted one by one.

    Raises:
        MissingPackage: llm-compressor is not installed.
    """
    require("llmcompressor", purpose=f"export to {plan.format}")
    from llmcompressor import oneshot

    data: dict[str, Any] = {}
    if rows is not None:
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

    groups = _four_bit(plan, symmetric=False)
    return [
        AWQModifier(duo_scaling="both"),
        QuantizationModifier(config_groups=groups, ignore=list(plan.ignored_modules)),
    ]


def _gptq(plan: ExportPlan) -> list[Any]:
    from llmcompressor.modifiers.gptq import GPTQModifier

    return [GPTQModifier(config_groups=_four_bit(plan, symmetric=True), ignore=list(plan.ignored_modules))]


def _four_bit(plan: ExportPlan, *, symmetric: bool) -> dict[str, Any]:
    weights = {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": plan.group_size,
        "symmetric": symmetric,
    }
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


_RECIPES: dict[ExportFormat, Callable[[ExportPlan], list[Any]]] = {
    "fp8": _plain("FP8_DYNAMIC"),
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
