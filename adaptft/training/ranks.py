"""What several ranks need beside a plan for one: how they talk, what each holds of the weights, how long they wait."""

from __future__ import annotations

import os
from typing import Any

from adaptft.errors import RequestError, TrainingError
from adaptft.plans import DTYPE_NAMES, Decisions, TrainPlan
from adaptft.training.sequences import parallelism, require_shareable

TIMEOUT_VARIABLE = "ADAPTFT_RANK_TIMEOUT"
TIMEOUT_SECONDS = 1800
"""How long a rank waits for another one: the first rank reads data and writes checkpoints while the others wait."""
TIED_MODULES = {"embed_tokens", "lm_head"}


def rank() -> int:
    """This process's number among all ranks of the run; 0 where it is alone."""
    return int(os.environ.get("RANK", 0))


def is_first() -> bool:
    """True for the rank that speaks and writes."""
    return rank() == 0


def has_weights(decisions: Decisions) -> bool:
    """False where another rank sends this one its part of the base; NF4 each rank reads and packs for itself."""
    return is_first() or not decisions.placement.value.is_sharded or decisions.method.value.base_storage == "nf4"


def timeout_seconds() -> int:
    """How long a rank waits for another one before it gives the run up.

    Raises:
        RequestError: the environment says something that is no number of seconds.
    """
    given = os.environ.get(TIMEOUT_VARIABLE, str(TIMEOUT_SECONDS))
    if not given.isdigit() or int(given) == 0:
        raise RequestError(
            f"{TIMEOUT_VARIABLE}={given} is no number of seconds.", fix=f"Use {TIMEOUT_VARIABLE}={TIMEOUT_SECONDS}."
        )
    return int(given)


def arguments_of_ranks(plan: TrainPlan, *, on_gpu: bool) -> dict[str, Any]:
    """The part of ``transformers.TrainingArguments`` that several ranks need; empty for one."""
    placement = plan.decisions.placement.value
    if placement.num_ranks == 1:
        return {}
    return {
        "ddp_backend": "nccl" if on_gpu else "gloo",
        "ddp_timeout": timeout_seconds(),
        "ddp_find_unused_parameters": False,
        # Frozen bases in FP8 and NF4 are buffers, and no buffer ever changes: DDP would send them in every forward.
        "ddp_broadcast_buffers": False,
        **(_sharding(plan) if placement.is_sharded else {}),
        **({"parallelism_config": parallelism(plan)} if placement.shares_rows else {}),
    }


def _sharding(plan: TrainPlan) -> dict[str, Any]:
    """FSDP2 with a unit for each decoder layer, as accelerate makes it."""
    decisions = plan.decisions
    return {
        "fsdp": True,
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": decisions.placement.value.strategy != "zero2",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "cpu_ram_efficient_loading": decisions.method.value.base_storage != "nf4",  # each rank packs its own
        },
        # Without an exchange each micro-batch would leave whole gradients on every rank, which sharding is to spare.
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


def mixed_precision(plan: TrainPlan) -> Any:
    """FSDP2's policy: weights are gathered in the compute type, gradients added up in FP32.

    accelerate's own would add gradients up, and return the loss, in 16 bit.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    compute = getattr(torch, DTYPE_NAMES[plan.decisions.precision.value.autocast])
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)


def require_possible(plan: TrainPlan, *, on_gpu: bool) -> None:
    """Refuse what several ranks cannot do, before anything is loaded.

    Raises:
        TrainingError: the plan shards fused adapters, 8-bit optimizer states or copies of a tied table; or it shares
            rows that cannot be shared.
    """
    require_shareable(plan, on_gpu=on_gpu)
    placement = plan.decisions.placement.value
    if not placement.is_sharded:
        return
    for is_there, why, fix in _not_shardable(plan):
        if is_there:
            raise TrainingError(f"The plan shards weights ({placement.strategy}), and {why}.", fix=fix)


def _not_shardable(plan: TrainPlan) -> tuple[tuple[bool, str, str], ...]:
    """(True where it is so, what it is, the way out)"""
    decisions = plan.decisions
    tied = plan.model.tie_word_embeddings and set(decisions.method.value.modules_to_save) & TIED_MODULES
    return (
        (
            decisions.adapters.value.fused,
            "its fused adapters join weights, which would be whole on every GPU",
            "Plan again: adaptft plan leaves fused adapters out where it shards.",
        ),
        (
            decisions.optimizer.value.name != "adamw",
            f"{decisions.optimizer.value.name} keeps states that cannot be sharded",
            "Use --optim adamw: its states are shards as well.",
        ),
        (
            bool(tied),
            f"modules_to_save {' '.join(sorted(tied or ()))} makes copies of one tied table, which cannot be sharded",
            "Leave modules_to_save out, or train the whole model: --train_type full.",
        ),
    )
