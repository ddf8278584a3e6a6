"""How a checkpoint is written so that it is there whole or not at all, and which older ones are kept.

transformers writes into a folder of another name; every file is then forced to the disk, the seal is written, and only
then the folder gets its name. A process may be killed at any moment: what is found afterwards is the older checkpoint,
or both.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate.utils.memory import clear_device_cache

from adaptft.errors import OutputError
from adaptft.plans import TrainPlan
from adaptft.records import write_json
from adaptft.training.adapters import trained_parameters
from adaptft.training.checkpoints import (
    SEAL,
    Seal,
    checkpoint_folders,
    damage,
    newest_whole,
    step_of,
)
from adaptft.training.disk_faults import disk_fault, fault_number
from adaptft.training.folders import DISCARDED, STAGING
from adaptft.training.identity import RunIdentity
from adaptft.training.incidents import Journal
from adaptft.training.marks import mark_of
from adaptft.training.stepping import is_out_of_memory
from adaptft.units import format_bytes, format_seconds

OPTIMIZER_BYTES_PER_PARAMETER: dict[str, int] = {"adamw": 8, "adamw_8bit": 3, "paged_adamw_8bit": 3}
"""Upper bounds of what the optimizer's file takes, by ``Optimizer.name``."""
SPARE_BYTES = 16 * 1024**2
"""Tokenless small files of a checkpoint: states, configuration, logs."""
PAUSES_SECONDS = (1.0, 5.0, 20.0)
"""Waited before a save is tried again where a share stumbled."""
PASSING = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EREMOTEIO})
"""What a network share says when it is away for a moment; a full or read-only disk says something else."""
SLOW_SECONDS = 120.0
"""A save that takes longer is said to be slow, once: a hanging share gives no error."""


class CheckpointKeeper:
    """Room, writing and rotation of the checkpoints in one output folder."""

    def __init__(
        self, plan: TrainPlan, output_dir: Path, identity: RunIdentity, journal: Journal, *,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:  # fmt: skip
        self._plan, self.folder, self._identity, self._journal = plan, output_dir, identity, journal
        self._slow_seconds = slow_seconds

    @property
    def staging(self) -> Path:
        """Where a checkpoint is while it is being written."""
        return self.folder / STAGING

    def needed_bytes(self, model: Any) -> int:
        """About what one checkpoint takes."""
        return checkpoint_bytes(model, self._plan.decisions.optimizer.value.name)

    def require_space(self, model: Any) -> None:
        """Refuse to start a checkpoint that will not fit.

        Raises:
            OutputError: the disk has less free than a checkpoint takes; the last good one is named.
        """
        require_free_bytes(self.folder, self.needed_bytes(model))

    def write(self, save: Callable[[], object], *, pauses: tuple[float, ...] = PAUSES_SECONDS) -> None:
        """Call ``save``, which writes into ``staging``: again where memory ran out or a network share stumbled.

        Raises:
            OutputError: the disk is full or cannot be written; the last good checkpoint is named.
        """
        for pause in (*pauses, None):
            try:
                with self._watched():
                    save()
                return
            except Exception as error:
                shutil.rmtree(self.staging, ignore_errors=True)
                number = fault_number(error, self.folder)
                if pause is None or not (number in PASSING or is_out_of_memory(error)):
                    if number is None:
                        raise
                    raise disk_fault(number, self.folder) from error
            clear_device_cache(garbage_collection=True)
            time.sleep(pause)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watch = threading.Timer(self._slow_seconds, self._tell_slow, args=(time.monotonic(),))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _tell_slow(self, begin: float) -> None:
        waited = format_seconds(time.monotonic() - begin)
        print(
            f"Writing a checkpoint into {self.folder} has taken {waited} so far: does its disk or share hang?",
            file=sys.stderr,
        )

    def seal(self, step: int) -> Path:
        """Give the checkpoint that lies in ``staging`` its name, whole; then delete those over the limit."""
        written = self.staging / f"checkpoint-{step}"
        (written / "README.md").unlink(missing_ok=True)  # PEFT's template, with nothing filled in
        self._journal.write(written)
        files = sorted(path for path in written.rglob("*") if path.is_file())
        for path in files:
            force_to_disk(path)
        marks = {path.relative_to(written).as_posix(): mark_of(path) for path in files}
        write_json(written / SEAL, Seal(step=step, run=self._identity, files=marks))
        force_to_disk(written)
        target = self.folder / written.name
        replaced = set_aside(target)
        written.rename(target)
        force_to_disk(self.folder)
        if replaced is not None and damage(replaced) is None:
            self._discard(replaced)
        self.staging.rmdir()
        self._rotate()
        return target

    def _rotate(self) -> None:
        """Damaged checkpoints count for nothing and are nobody's to delete."""
        limit = self._plan.request.save_total_limit
        whole = [folder for folder in checkpoint_folders(self.folder) if damage(folder, is_quick=True) is None]
        for old in whole[limit:] if limit else ():
            self._discard(old)

    def _discard(self, folder: Path) -> None:
        """Delete a checkpoint; a kill in between leaves no half of one under its name."""
        gone = self.folder / DISCARDED
        shutil.rmtree(gone, ignore_errors=True)
        folder.rename(gone)
        shutil.rmtree(gone)

    def drop_after(self, step: int) -> None:
        """Delete the checkpoints behind ``step``: the run goes another way from there."""
        for folder in checkpoint_folders(self.folder):
            if step_of(folder) > step and damage(folder, is_quick=True) is None:
                self._discard(folder)


def set_aside(target: Path) -> Path | None:
    """Give what is at ``target`` another name, which is returned; None where nothing is there."""
    if not target.exists():
        return None
    names = (f"{target.name}.aside{'' if number == 1 else number}" for number in itertools.count(1))
    aside = next(path for name in names if not (path := target.with_name(name)).exists())
    return target.rename(aside)


def force_to_disk(path: Path) -> None:
    """Return when ``path``, a file or the names in a folder, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checkpoint_bytes(model: Any, optimizer: str) -> int:
    """About what a checkpoint of ``model`` takes: trained weights and their optimizer state."""
    trained = trained_parameters(model)
    weights = sum(p.numel() * p.element_size() for p in trained)
    return weights + sum(p.numel() for p in trained) * OPTIMIZER_BYTES_PER_PARAMETER[optimizer] + SPARE_BYTES


def require_free_bytes(folder: Path, needed_bytes: int) -> None:
    """Refuse where the file system of ``folder`` has less than ``needed_bytes`` free.

    Raises:
        OutputError: it has less; the last good checkpoint is named.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())  # another rank may make it
    free = shutil.disk_usage(there).free
    if free >= needed_bytes:
        return
    last_good = newest_whole(folder)[0]
    kept = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint yet"
    raise OutputError(
        f"A checkpoint takes about {format_bytes(needed_bytes)} and {folder} has {format_bytes(free)} free; {kept}.",
        fix="Free some space and go on with --resume_from_checkpoint auto, or use a smaller --save_total_limit.",
    )
