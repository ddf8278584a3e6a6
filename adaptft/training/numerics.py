"""Everything process-wide that a run sets: environment, seeds, TF32, threads. Nothing else in adaptft writes these."""

from __future__ import annotations

import os
from contextlib import suppress

from adaptft.home import cache_folder
from adaptft.plans import Precision, TrainPlan

ENVIRONMENT: dict[str, str] = {
    # Segments that grow in place: packed batches of changing shape would fragment fixed ones.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # The tokenizer's threads do not survive the fork of the loader's workers.
    "TOKENIZERS_PARALLELISM": "false",
}
OLDER_NAMES: dict[str, str] = {"PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF"}
COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"
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
    """Set what is not set yet: a value from outside is somebody's wish, under its older name too."""
    for name, value in ENVIRONMENT.items():
        if OLDER_NAMES.get(name, name) not in os.environ:
            os.environ.setdefault(name, value)
    _keep_compiled_code()


def _keep_compiled_code() -> None:
    """Have compiled layers survive a restart of the machine, which torch's own place, the temporary folder, does not.

    Where our cache cannot be written, torch's own place serves.
    """
    folder = cache_folder("compiled")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault(COMPILE_CACHE, str(folder))


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
