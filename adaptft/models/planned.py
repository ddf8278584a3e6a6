"""Loading weights as a plan says. Adapters, checkpointing and compilation come after, in ``training``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.models.loading import load_weights
from adaptft.optional import require
from adaptft.plans import DTYPE_NAMES, TrainPlan

if TYPE_CHECKING:
    import torch


def load_for_training(plan: TrainPlan, path: Path, *, has_weights: bool = True) -> Any:
    """The base model of ``plan`` from the folder ``path``, on its device, in its storage, with its attention.

    Without ``has_weights`` only memory is reserved, for what another rank sends.

    Raises:
        MissingPackage: NF4 is planned and bitsandbytes is not installed.
        ModelError: transformers cannot load it so.
    """
    import torch

    decisions = plan.decisions
    if not has_weights:
        return _without_weights(plan, path)
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


def _without_weights(plan: TrainPlan, path: Path) -> Any:
    """The model with memory reserved and never touched, so that none is used: the first rank sends each rank its part.

    transformers itself would fill it with zeros, and so take all of it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    trusted = plan.request.trust_remote_code
    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted)
    decisions = plan.decisions
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=getattr(torch, DTYPE_NAMES[decisions.precision.value.weights]),
            attn_implementation=_attention_name(decisions.attention.value.implementation),
            trust_remote_code=trusted,
        )
    model.tie_weights()
    model.config.use_cache = False
    return model


def own_device(plan: TrainPlan) -> torch.device:
    """Where the model of this rank is trained."""
    import os

    import torch

    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if plan.uses_gpu else torch.device("cpu")


def _device_map(plan: TrainPlan) -> dict[str, Any]:
    """One device for the whole model, unless the plan splits its layers; each rank takes its own GPU.

    What is to be sharded begins on the host, as does what goes to the GPU by layers: a GPU need not hold the whole.
    """
    placement = plan.decisions.placement.value
    if placement.is_sharded or plan.decisions.adapters.value.by_layer:
        return {"": "cpu"}
    if placement.strategy == "layer_split" and placement.device_map:
        return placement.device_map
    return {"": own_device(plan)}


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
    compute = getattr(torch, DTYPE_NAMES[precision.autocast])
    # FSDP2 shards what looks like weights of the type it gathers in
    storage = {"bnb_4bit_quant_storage": compute} if plan.decisions.placement.value.is_sharded else {}
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=method.double_quant,
        bnb_4bit_compute_dtype=compute,
        **storage,
        llm_int8_skip_modules=list(method.skipped_modules),
    )
