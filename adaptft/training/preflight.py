"""The worst first: the largest micro-batch, the optimizer's state, one evaluation batch and one save before step 1.

A run that cannot be carried out fails here, in its first minute. Weights, optimizer, gradients and random states are
left exactly as they were.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.memory import clear_device_cache
from torch import nn

from adaptft.training import numerics

PROBE_FILE = ".space.partial"
SAVED_BYTES = 2 << 30
"""A checkpoint up to this size is really written; for a larger one its space is reserved and given back."""
WORTHWHILE_BATCHES = 4
"""On the CPU, where memory seldom decides, a run of fewer micro-batches is not rehearsed: it would cost as much."""


def rehearse(trainer: Any, model: nn.Module) -> None:
    """Do once, on the largest rows, what the run will do.

    Args:
        trainer: a ``PlannedTrainer`` that is about to begin; its checkpoint, if any, is loaded.
        model: as the trainer's loop uses it (wrapped).

    Raises:
        TrainingError: a document does not fit into memory.
        OutputError: a checkpoint cannot be written.
    """
    arguments = trainer.args
    batches = max(trainer.state.max_steps - trainer.state.global_step, 0) * arguments.gradient_accumulation_steps
    if batches == 0 or (arguments.device.type != "cuda" and batches < WORTHWHILE_BATCHES):
        return
    before = numerics.random_state()
    was_training = model.training
    try:
        _largest_step(trainer, model)
        if trainer.eval_dataset is not None and arguments.eval_strategy != "no":
            _largest_evaluation(trainer)
        if arguments.save_strategy != "no":
            _save(trainer, model)
    finally:
        model.train(was_training)
        numerics.set_random_state(before)
    clear_device_cache()


def _largest_step(trainer: Any, model: nn.Module) -> None:
    rows = trainer.train_dataset
    batch = trainer.collator([rows[index] for index in rows.longest(trainer.args.per_device_train_batch_size)])
    with _memory_of_later_steps(trainer), trainer.without_exchange(model):
        trainer.steps.begin(trainer.state.global_step)
        trainer.training_step(model, batch, max(batch["num_trained"], 1))
    model.zero_grad()
    trainer.steps.begin(trainer.state.global_step)


@contextmanager
def _memory_of_later_steps(trainer: Any) -> Iterator[None]:
    """Inside, the optimizer has the state it has from its first step on; and gradients are there if windows accumulate
    them, while without accumulation no run ever holds all gradients and all activations at once.
    """
    optimizer = trainer.optimizer.optimizer
    is_new, rates = not optimizer.state, [group["lr"] for group in optimizer.param_groups]
    try:
        for parameter in trainer.trained:
            parameter.grad = torch.zeros_like(parameter)
        if is_new:
            for group in optimizer.param_groups:
                group["lr"] = 0.0  # a step of nothing: AdamW's decay is a share of the rate too
            optimizer.step()
        if trainer.args.gradient_accumulation_steps == 1:
            optimizer.zero_grad()
        yield
    finally:
        if is_new:
            optimizer.state.clear()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _largest_evaluation(trainer: Any) -> None:
    rows = trainer.eval_dataset
    size = trainer.args.per_device_eval_batch_size
    trainer.evaluation_loss([trainer.collator([rows[index] for index in rows.longest(size)])])


def _save(trainer: Any, model: nn.Module) -> None:
    keeper = trainer.keeper
    needed = keeper.needed_bytes(trainer.model)
    try:
        if needed <= SAVED_BYTES:
            keeper.write(lambda: trainer.write_checkpoint(model), pauses=trainer.save_pauses)
        elif trainer.args.should_save:
            keeper.write(lambda: reserve(keeper.folder, needed))
        trainer.accelerator.wait_for_everyone()
    finally:
        if trainer.args.should_save:
            shutil.rmtree(keeper.staging, ignore_errors=True)


def reserve(folder: Path, num_bytes: int) -> None:
    """Have the file system set ``num_bytes`` aside in ``folder`` (quotas count), and give them back.

    Raises:
        OSError: it refuses. A file system that cannot set space aside is asked for one byte only.
    """
    path = folder / PROBE_FILE
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        if hasattr(os, "posix_fallocate") and not _is_emulated(folder):
            os.posix_fallocate(descriptor, 0, num_bytes)
        else:
            os.write(descriptor, b"\0")
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _is_emulated(folder: Path) -> bool:
    """True on network file systems, where the C library would write every block instead."""
    network = ("nfs", "cifs", "smb3", "fuse", "9p", "lustre", "ceph")
    best = ("", "")
    for line in Path("/proc/mounts").read_text().splitlines() if Path("/proc/mounts").exists() else []:
        _, mount, kind, *_ = line.split()
        if str(folder.resolve()).startswith(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1].startswith(network)
