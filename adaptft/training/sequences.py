"""Rows that several ranks share: each computes a part of every row's tokens, with a ring of attention between them.

torch's context parallelism, as accelerate sets it up on FSDP2: full causal attention by PyTorch's own kernels on GPUs,
one document in a row. DeepSpeed's Ulysses, the other kind that transformers' Trainer takes, would need its engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan

if TYPE_CHECKING:
    from accelerate import ParallelismConfig

ROW_PIECES = 64
"""Lengths of padded rows are multiples of this; the ring deals two pieces of each row to a rank."""


def parallelism(plan: TrainPlan) -> ParallelismConfig:
    """Which ranks share rows: neighbours, as accelerate numbers them."""
    from accelerate import ParallelismConfig

    placement = plan.decisions.placement.value
    return ParallelismConfig(dp_shard_size=placement.data_parallel_size, cp_size=placement.sequence_parallel_size)


def require_shareable(plan: TrainPlan, *, on_gpu: bool) -> None:
    """Refuse plans whose rows cannot be shared.

    Raises:
        TrainingError: names what stands in the way, and what to set.
    """
    decisions = plan.decisions
    size = decisions.placement.value.sequence_parallel_size
    if size == 1:
        return
    obstacles = (
        (not on_gpu, "torch's ring attention has no kernels for the CPU", "Train on GPUs, or without shared rows"),
        (not decisions.placement.value.is_sharded, "it stands on FSDP2", "Plan again with fsdp2"),
        (decisions.attention.value.implementation != "sdpa", "it knows sdpa only", "Use --attn_impl sdpa"),
        (decisions.batch.value.packing, "a row may hold one document only", "Use --packing false"),
        (plan.model.sliding_window is not None, "it knows full attention only", "Train without shared rows"),
        (
            ROW_PIECES % (2 * size) != 0,
            f"{ROW_PIECES} tokens are not two pieces for each rank",
            "Share among 2, 4 or 8",
        ),
    )
    for is_there, why, fix in obstacles:
        if is_there:
            raise TrainingError(f"{size} ranks cannot share the tokens of a row: {why}.", fix=f"{fix}.")


@contextmanager
def shared(trainer: Any, inputs: dict[str, Any]) -> Iterator[None]:
    """Inside, ``inputs`` are this rank's part of the rows, forward and backward; all of them where nobody shares."""
    if not trainer.plan.decisions.placement.value.shares_rows:
        yield
        return
    parts = [inputs[name] for name in ("input_ids", "labels", "position_ids")]
    with trainer.accelerator.maybe_context_parallel(
        buffers=parts, buffer_seq_dims=[1] * len(parts), no_restore_buffers=set(parts)
    ):
        yield
