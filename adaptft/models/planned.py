"""Loading weights as a plan says. Adapters, checkpointing and compilation come after, in ``training``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptft.models.loading import load_weights
from adaptft.optional import require
from adaptft.plans import DTYPE_NAMES, TrainPlan


def load_for_training(plan: TrainPlan, path: Path) -> Any:
    """The base model of ``plan`` from the folder ``path``, on its device, in its storage, with its attention.

    Raises:
        MissingPackage: NF4 is planned and bitsandbytes is not installed.
        ModelError: transformers cannot load it so.
    """
    import torch

    decisions = plan.decisions
    model = load_weights(
        path,
        dtype=getattr(torch, DTYPE_NAMES[decisions.precision.value.weights]),
        device_map=_device_map(plan),
        attn_implementation=_attention_name(decisions.attention.value.implementation),
        quantization_config=nf4_config(plan) if decisions.method.value.base_storage == "nf4" else None,
        trust_remote_code=plan.request.trust_remote_code,
        local_files_only=True,
    )
    model.config.use_cache = False
    return model


def _device_map(plan: TrainPlan) -> dict[str, int | str]:
    """One device for the whole model, unless the plan splits its layers; each rank takes its own GPU."""
    import os

    placement = plan.decisions.placement.value
    if placement.strategy == "cpu" or not plan.machine.gpus:
        return {"": "cpu"}
    if placement.strategy == "layer_split" and placement.device_map:
        return placement.device_map
    return {"": int(os.environ.get("LOCAL_RANK", 0))}


def _attention_name(implementation: str) -> str:
    if implementation != "varlen":
        return implementation
    from adaptft.kernels.packed_attention import register

    return register()


def nf4_config(plan: TrainPlan) -> Any:
    """NF4 for every linear layer but the plan's skipped ones.

    A skip list of one's own replaces transformers' default (the head), so the plan's list must hold the head.
    """
    import torch
    from transformers import BitsAndBytesConfig

    require("bitsandbytes", purpose="qlora")
    method, precision = plan.decisions.method.value, plan.decisions.precision.value
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=method.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, DTYPE_NAMES[precision.autocast]),
        llm_int8_skip_modules=list(method.skipped_modules),
    )
