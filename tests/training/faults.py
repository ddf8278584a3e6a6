"""Real faults for the training tests: a device that is too small, numbers that are none, a disk that is full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.nn.modules import module as hooks
from transformers.modeling_layers import GradientCheckpointingLayer

NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@contextmanager
def small_device(
    most_tokens: int, *, where: str = "forward", after: int = 0, trains: bool | None = None,
    error: Exception = NO_MEMORY,
) -> Iterator[list[int]]:  # fmt: skip
    """Every decoder layer runs out of memory, as the allocator would, at more than ``most_tokens``.

    Args:
        where: ``forward`` or ``backward``, where some layers have added their gradients already.
        after: so many passes through a layer go well first.
        trains: only in training (True) or evaluation (False).
        error: what is raised.

    Yields:
        The sizes that did not fit, as they come.
    """
    failed: list[int] = []
    passes = 0

    def look(module: torch.nn.Module, values: object) -> None:
        nonlocal passes
        if not isinstance(module, GradientCheckpointingLayer) or trains not in (None, module.training):
            return
        tensor = next(v for v in values if torch.is_tensor(v))
        passes += 1
        if passes > after and tensor.shape[0] * tensor.shape[1] > most_tokens and _is_second(module):
            failed.append(tensor.shape[0] * tensor.shape[1])
            raise error

    def _is_second(module: torch.nn.Module) -> bool:
        return getattr(module.self_attn, "layer_idx", 1) == 1

    register = (
        hooks.register_module_forward_pre_hook if where == "forward" else hooks.register_module_full_backward_pre_hook
    )
    handle = register(look)
    try:
        yield failed
    finally:
        handle.remove()


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """``folder`` as a file system of its own of ``size`` ("8m")."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change a ``small_disk``: ``ro``, ``size=1m``."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
