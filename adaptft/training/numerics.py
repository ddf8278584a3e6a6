"""Everything process-wide that a run sets: environment, seeds, TF32, threads. Nothing else in adaptft writes these."""

from __future__ import annotations

import os
import sys

from adaptft.plans import Precision, TrainPlan

ENVIRONMENT: dict[str, str] = {
    # Segments that grow in place: packed batches of changing shape would fragment fixed ones.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # The tokenizer's threads do not survive the fork of the loader's workers.
    "TOKENIZERS_PARALLELISM": "false",
}
MATMUL_PRECISION: dict[str, str] = {"tf32": "high", "ieee": "highest"}
"""``Precision.fp32_matmul`` in the words of ``torch.set_float32_matmul_precision``, which every torch we support
takes without a warning and which keeps its older and its newer switches in step."""


def set_up(plan: TrainPlan) -> None:
    """Set the process up for ``plan``. Call before anything touches CUDA: the allocator reads its settings once."""
    set_environment()
    set_matmul_precision(plan.decisions.precision.value)
    set_cpu_threads(plan)
    set_seed(plan.request.seed)


def set_environment() -> None:
    """Set what is not set yet: a value from outside is somebody's wish."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def set_matmul_precision(precision: Precision) -> None:
    """TF32 or IEEE arithmetic for matmuls whose operands are fp32."""
    import torch

    torch.set_float32_matmul_precision(MATMUL_PRECISION[precision.fp32_matmul])


def cpu_threads(usable_cores: float, num_processes: int = 1) -> int:
    """Threads for one of ``num_processes`` on a host with ``usable_cores`` (affinity and quota counted)."""
    return max(1, int(usable_cores) // num_processes)


def set_cpu_threads(plan: TrainPlan) -> None:
    """One thread for each usable core, shared among this host's ranks; ``OMP_NUM_THREADS`` from outside wins."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        torch.set_num_threads(cpu_threads(plan.machine.cpu.usable_cores, ranks))


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch, on every device."""
    from transformers import set_seed as seed_everything

    seed_everything(seed)


def quiet_libraries() -> None:
    """Keep transformers' own progress bars and notices off the terminal; ours say the same once."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def clear_gpu_cache() -> None:
    """Give cached blocks back, as far as torch has been imported at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
