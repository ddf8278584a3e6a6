"""Everything process-wide that a run sets: environment, seeds, TF32, threads. Nothing else in adaptft writes these."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from adaptft.home import cache_folder
from adaptft.plans import Precision, TrainPlan

ENVIRONMENT: dict[str, str] = {
    # Segments that grow in place: packed batches of changing shape would fragment fixed ones.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # The tokenizer's threads do not survive the fork of the loader's workers.
    "TOKENIZERS_PARALLELISM": "false",
}
OLDER_NAMES: dict[str, str] = {"PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF"}
_BEHIND_TORCHS_OWN = 100
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
    _load_to_numbered_cpus()


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


@cache
def _load_to_numbered_cpus() -> None:
    """Have torch load checkpoints to ``cpu:0``: accelerate numbers the CPUs of several ranks, torch.load knows one."""
    import torch

    def restore(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(_BEHIND_TORCHS_OWN, lambda storage: None, restore)  # type: ignore[arg-type]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """Where all random generators stand: Python's, NumPy's, torch's on the host and on this process's GPU."""

    python: Any
    numpy: Any
    torch: Any
    cuda: Any


def random_state() -> RandomState:
    """The state now; on a GPU it is kept on the host, so that nothing waits for the device."""
    import numpy
    import torch

    return RandomState(
        python=random.getstate(),
        numpy=numpy.random.get_state(),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
    )


def set_random_state(state: RandomState) -> None:
    """Go back to ``state``."""
    import numpy
    import torch

    random.setstate(state.python)
    numpy.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)
    if state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda)
