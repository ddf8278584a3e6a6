"""What stops a run, in two lines. Going on after it (smaller micro-batch, skipped step) has its place here too."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.units import format_bytes


def check_step(step: int, loss: float, gradient_norm: float | None, *, skipped: bool, is_first: bool) -> None:
    """Look at the numbers of one step.

    Raises:
        TrainingError: the loss or the gradient is not a number (an FP16 step that the loss scaler skipped is none of
            these), or the first loss is exactly zero.
    """
    if not math.isfinite(loss):
        raise TrainingError(
            f"The loss of step {step} is {loss}.",
            fix="Likely causes: a learning rate too high (halve it), float16 where bfloat16 is possible, broken rows.",
        )
    if gradient_norm is not None and not math.isfinite(gradient_norm) and not skipped:
        raise TrainingError(
            f"The gradient of step {step} is {gradient_norm} while its loss is {loss:.4f}.",
            fix="Likely causes: a learning rate too high (halve it), or rows with extreme content in that step.",
        )
    if is_first and loss == 0.0:
        raise TrainingError(
            "The loss of the first step is exactly 0: nothing in its rows is trained.",
            fix="Look at the printed sample and its loss mask; check the answers' column, or use --train_on_prompt.",
        )


def require_trained_tokens(num_trained: int) -> None:
    """Refuse rows without a single trained token.

    Raises:
        TrainingError: ``num_trained`` is zero.
    """
    if num_trained == 0:
        raise TrainingError(
            "No token of the training rows is in the loss.",
            fix="Check that the rows have answers that fit into max_length, or use --train_on_prompt.",
        )


@contextmanager
def explained(plan: TrainPlan) -> Iterator[None]:
    """Turn the GPU's running out of memory into what was planned, what there is, and the way out.

    Raises:
        TrainingError: torch ran out of GPU memory.
    """
    import torch

    try:
        yield
    except torch.OutOfMemoryError as cause:
        free, total = torch.cuda.mem_get_info()
        raise out_of_memory(plan, free_bytes=free, total_bytes=total) from cause


def out_of_memory(plan: TrainPlan, *, free_bytes: int, total_bytes: int) -> TrainingError:
    """The error for a GPU out of memory; its way out keeps the global batch."""
    batch = plan.decisions.batch.value
    found = (
        f"The GPU ran out of memory: {format_bytes(plan.memory.peak_bytes)} were predicted, "
        f"{format_bytes(free_bytes)} of {format_bytes(total_bytes)} are free."
    )
    if batch.micro_batch_size > 1:
        return TrainingError(
            found,
            fix=f"Use --per_device_train_batch_size {batch.micro_batch_size // 2} --global_batch_size "
            f"{batch.global_batch_size}: the same steps in smaller parts; or stop what else uses the GPU.",
        )
    shorter = batch.max_length // 2
    return TrainingError(
        found,
        fix=f"Use --gradient_checkpointing true, --train_type qlora or --max_length {shorter}; "
        "or stop what else uses the GPU.",
    )
