"""Checkpoints: when there is room for one, when one is whole, and which one a run goes on from.

transformers writes ``checkpoint-STEP``; the seal, a list of its files with sizes and checksums, is written last.
A folder without a seal, or that no longer matches it, is not a checkpoint.
"""

from __future__ import annotations

import re
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.artifacts import FILE_NAME
from adaptft.errors import OutputError
from adaptft.plans import TrainPlan
from adaptft.records import read_json, write_json
from adaptft.training.adapters import trained_parameters
from adaptft.training.identity import RunIdentity
from adaptft.units import format_bytes

SEAL = "checkpoint.json"
OPTIMIZER_BYTES_PER_PARAMETER: dict[str, int] = {"adamw": 8, "adamw_8bit": 3, "paged_adamw_8bit": 3}
"""Upper bounds of what the optimizer's file takes, by ``Optimizer.name``."""
SPARE_BYTES = 16 * 1024**2
"""Tokenless small files of a checkpoint: states, configuration, logs."""
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """Size and CRC-32 of one file."""

    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a checkpoint holds, and of which run it is."""

    step: int
    run: RunIdentity
    files: dict[str, FileMark]


class CheckpointKeeper:
    """Room, seals and rotation of the checkpoints in one output folder."""

    def __init__(self, plan: TrainPlan, output_dir: Path, identity: RunIdentity) -> None:
        self._plan, self._folder, self._identity = plan, output_dir, identity

    def require_space(self, model: Any) -> None:
        """Refuse to start a checkpoint that will not fit.

        Raises:
            OutputError: the disk has less free than a checkpoint takes; the last good one is named.
        """
        last = newest_whole(self._folder)[0]
        needed = checkpoint_bytes(model, self._plan.decisions.optimizer.value.name)
        require_free_bytes(self._folder, needed, last_good=last)

    def seal(self, step: int) -> None:
        """Mark ``checkpoint-step`` as whole, then delete those over the limit, oldest first."""
        folder = self._folder / f"checkpoint-{step}"
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's template, with nothing filled in
        seal = Seal(
            step=step,
            run=self._identity,
            files={p.relative_to(folder).as_posix(): _mark(p) for p in sorted(folder.rglob("*")) if p.is_file()},
        )
        write_json(folder / SEAL, seal)
        limit = self._plan.request.save_total_limit
        if limit:
            for old in checkpoint_folders(self._folder)[limit:]:
                shutil.rmtree(old)


def checkpoint_bytes(model: Any, optimizer: str) -> int:
    """About what a checkpoint of ``model`` takes: trained weights and their optimizer state."""
    trained = trained_parameters(model)
    weights = sum(p.numel() * p.element_size() for p in trained)
    return weights + sum(p.numel() for p in trained) * OPTIMIZER_BYTES_PER_PARAMETER[optimizer] + SPARE_BYTES


def require_free_bytes(folder: Path, needed_bytes: int, *, last_good: Path | None) -> None:
    """Refuse where the file system of ``folder`` has less than ``needed_bytes`` free.

    Raises:
        OutputError: it has less.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())  # another rank may make it
    free = shutil.disk_usage(there).free
    if free >= needed_bytes:
        return
    kept = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint yet"
    raise OutputError(
        f"A checkpoint takes about {format_bytes(needed_bytes)} and {folder} has {format_bytes(free)} free; {kept}.",
        fix="Free some space and go on with --resume_from_checkpoint auto, or use a smaller --save_total_limit.",
    )


def drop_unfinished(output_dir: Path) -> None:
    """Delete checkpoints without a seal: a run that stopped while it wrote one leaves nothing half."""
    for folder in checkpoint_folders(output_dir):
        if not (folder / SEAL).exists():
            shutil.rmtree(folder, ignore_errors=True)


def checkpoint_folders(output_dir: Path) -> list[Path]:
    """The ``checkpoint-STEP`` folders, highest step first."""
    found = [(int(m.group(1)), p) for p in output_dir.glob("checkpoint-*") if (m := re.search(r"-(\d+)$", p.name))]
    return [path for _, path in sorted(found, reverse=True)]


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where it is whole."""
    if not (folder / SEAL).exists():
        return f"it has no {SEAL}: it was not finished"
    try:
        seal = read_seal(folder)
    except OutputError as error:
        return error.problem
    for name, mark in seal.files.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size != mark.num_bytes:
            return f"{name} has {path.stat().st_size} of {mark.num_bytes} bytes"
        if _mark(path) != mark:
            return f"{name} has changed since it was written"
    return None


def newest_whole(output_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest whole checkpoint, None where there is none, and why newer ones were passed over."""
    passed_over: list[str] = []
    for folder in checkpoint_folders(output_dir):
        problem = damage(folder)
        if problem is None:
            return folder, tuple(passed_over)
        passed_over.append(f"Passed over {folder.name}: {problem}.")
    return None, tuple(passed_over)


def find_checkpoint(plan: TrainPlan, output_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The checkpoint that ``plan.request.resume_from_checkpoint`` means, with notes; None to start anew.

    ``auto`` takes the newest whole one of ``output_dir``; a path takes that one or nothing.

    Raises:
        OutputError: the named checkpoint does not exist or is damaged; or the folder holds a result and no whole
            checkpoint, so that starting anew would replace it unasked.
    """
    wanted = plan.request.resume_from_checkpoint
    if wanted is None:
        return None, ()
    if wanted == "auto":
        found, notes = newest_whole(output_dir)
        if found is None:
            _require_no_result(output_dir)
        return found, notes
    return _named(Path(wanted)), ()


def _require_no_result(output_dir: Path) -> None:
    if (output_dir / FILE_NAME).exists():
        raise OutputError(
            f"{output_dir} holds a finished result and no whole checkpoint to go on from.",
            fix="Start a new run in another --output_dir, or replace this one: --overwrite_output_dir true without "
            "--resume_from_checkpoint.",
        )


def _named(folder: Path) -> Path:
    if not folder.is_dir():
        raise OutputError(
            f"There is no checkpoint {folder}.", fix="Name an existing one, or use --resume_from_checkpoint auto."
        )
    if not (folder / SEAL).exists() and (inner := checkpoint_folders(folder)):
        raise OutputError(f"{folder} is no checkpoint, but holds some.", fix=f"Name one of them: {inner[0]}")
    if problem := damage(folder):
        raise OutputError(
            f"The checkpoint {folder} is damaged: {problem}.",
            fix="Use --resume_from_checkpoint auto, which takes the newest whole one.",
        )
    return folder


def read_seal(folder: Path) -> Seal:
    """The seal of the checkpoint in ``folder``.

    Raises:
        OutputError: there is none, or it cannot be understood.
    """
    return read_json(
        Seal, folder / SEAL, error=OutputError, what="checkpoint's list of files",
        fix="Use --resume_from_checkpoint auto, which takes the newest whole one.",
    )  # fmt: skip


def _mark(path: Path) -> FileMark:
    checksum, size = 0, 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            checksum, size = zlib.crc32(chunk, checksum), size + len(chunk)
    return FileMark(num_bytes=size, crc32=checksum)
