"""What stops a run, in two lines. ``stepping``, ``numbers`` and ``keeping`` go on where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.units import format_bytes


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


def free_memory(plan: TrainPlan) -> tuple[int, int]:
    """Free and total bytes of what the plan trains on: the GPU, or the host."""
    if plan.uses_gpu:
        import torch

        return torch.cuda.mem_get_info()
    import psutil

    host = psutil.virtual_memory()
    return host.available, host.total


@contextmanager
def explained(
    plan: TrainPlan, output_dir: Path, free: Callable[[TrainPlan], tuple[int, int]] = free_memory
) -> Iterator[None]:
    """Turn what memory and disk refuse into what was planned, what there is, what is kept, and the way out.

    Args:
        free: gives free and total bytes of the device.

    Raises:
        TrainingError: torch ran out of memory.
        OutputError: the output folder cannot be written.
    """
    from adaptft.training.disk_faults import disk_fault, fault_number
    from adaptft.training.stepping import is_out_of_memory

    try:
        yield
    except Exception as cause:  # libraries wrap what the system says in errors of many kinds
        if is_out_of_memory(cause):
            raise _with_what_is_kept(out_of_memory(plan, free(plan)), plan, output_dir) from cause
        number = fault_number(cause, output_dir)
        if number is None:
            raise
        raise disk_fault(number, output_dir) from cause


def _with_what_is_kept(error: TrainingError, plan: TrainPlan, output_dir: Path) -> TrainingError:
    """One rank can go on in smaller parts by itself, several cannot: they exchange what the others wait for."""
    from adaptft.training.failures import what_is_kept

    if plan.decisions.placement.value.num_ranks == 1:
        return error
    kept, go_on = what_is_kept(output_dir)
    return TrainingError(f"{error.problem} {kept}.", fix=f"{error.fix.rstrip('.')}; then {go_on}")


def out_of_memory(plan: TrainPlan, memory: tuple[int, int]) -> TrainingError:
    """The error for a device with ``memory`` (free, total) that ran out of it; its way out keeps the global batch."""
    batch = plan.decisions.batch.value
    free_bytes, total_bytes = memory
    found = (
        f"The {'GPU' if plan.uses_gpu else 'host'} ran out of memory: {format_bytes(plan.memory.peak_bytes)} were "
        f"predicted, {format_bytes(free_bytes)} of {format_bytes(total_bytes)} are free."
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
