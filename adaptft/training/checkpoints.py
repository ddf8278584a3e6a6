"""Checkpoints: when one is whole, and which one a run goes on from.

The seal of ``checkpoint-STEP`` is a list of its files with sizes and hashes (``keeping`` writes it). A folder without
a seal, or that no longer matches it, is not a checkpoint; it is never gone on from, changed or deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from adaptft.artifacts import FILE_NAME
from adaptft.errors import OutputError
from adaptft.records import read_json
from adaptft.requests import TrainRequest
from adaptft.training.identity import RunIdentity
from adaptft.training.marks import FileMark, mark_of

SEAL = "checkpoint.json"
WEIGHTS = ("adapter_*", "model*.safetensors*", "config.json")
"""The files of a checkpoint that hold the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What a checkpoint holds, and of which run it is."""

    step: int
    run: RunIdentity
    files: dict[str, FileMark]


def checkpoint_folders(output_dir: Path) -> list[Path]:
    """The ``checkpoint-STEP`` folders, highest step first."""
    found = [p for p in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint folder."""
    return int(folder.name.rpartition("-")[2])


def damage(folder: Path, patterns: tuple[str, ...] = ("*",), *, is_quick: bool = False) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where it is whole.

    Args:
        patterns: which of its files are looked at.
        is_quick: sizes are compared and contents are not.
    """
    if not (folder / SEAL).exists():
        return f"it has no {SEAL}: it was not finished"
    try:
        seal = read_seal(folder)
    except OutputError as error:
        return error.problem
    files = {name: mark for name, mark in seal.files.items() if any(PurePath(name).match(p) for p in patterns)}
    for name, mark in files.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        if path.stat().st_size != mark.num_bytes:
            return f"{name} has {path.stat().st_size} of {mark.num_bytes} bytes"
        if not is_quick and mark_of(path) != mark:
            return f"{name} has changed since it was written"
    return None


def newest_whole(
    output_dir: Path, patterns: tuple[str, ...] = ("*",), *, up_to: int | None = None
) -> tuple[Path | None, tuple[str, ...]]:
    """The newest whole checkpoint (of step ``up_to`` at most), None where there is none, and why newer ones were
    passed over."""
    passed_over: list[str] = []
    for folder in checkpoint_folders(output_dir):
        if up_to is not None and step_of(folder) > up_to:
            continue
        problem = damage(folder, patterns)
        if problem is None:
            return folder, tuple(passed_over)
        passed_over.append(
            f"Passed over {folder.name}: {problem}. It is kept ({folder.name}.aside, once its step comes)."
        )
    return None, tuple(passed_over)


def find_checkpoint(request: TrainRequest, output_dir: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The checkpoint that ``request.resume_from_checkpoint`` means, with notes; None to start anew.

    ``auto`` takes the newest whole one of ``output_dir``; a path takes that one or nothing. With ``resume_only_model``
    a checkpoint is whole where its weights are.

    Raises:
        OutputError: the named checkpoint does not exist or is damaged; or the folder holds a result and no whole
            checkpoint, so that starting anew would replace it unasked.
    """
    patterns = WEIGHTS if request.resume_only_model else ("*",)
    if request.resume_from_checkpoint is None:
        return None, ()
    if request.resume_from_checkpoint == "auto":
        found, notes = newest_whole(output_dir, patterns)
        if found is None:
            _require_no_result(output_dir)
        return found, notes
    return _named(Path(request.resume_from_checkpoint), patterns), ()


def _require_no_result(output_dir: Path) -> None:
    if (output_dir / FILE_NAME).exists():
        raise OutputError(
            f"{output_dir} holds a finished result and no whole checkpoint to go on from.",
            fix="Start a new run in another --output_dir, or replace this one: --overwrite_output_dir true without "
            "--resume_from_checkpoint.",
        )


def _named(folder: Path, patterns: tuple[str, ...]) -> Path:
    if not folder.is_dir():
        raise OutputError(
            f"There is no checkpoint {folder}.", fix="Name an existing one, or use --resume_from_checkpoint auto."
        )
    if not (folder / SEAL).exists() and (inner := checkpoint_folders(folder)):
        raise OutputError(f"{folder} is no checkpoint, but holds some.", fix=f"Name one of them: {inner[0]}")
    if problem := damage(folder, patterns):
        weights_are_whole = patterns != WEIGHTS and damage(folder, WEIGHTS) is None
        raise OutputError(
            f"The checkpoint {folder} is damaged: {problem}.",
            fix="Use --resume_from_checkpoint auto, which takes the newest whole one"
            + ("; or its weights alone: --resume_only_model true." if weights_are_whole else "."),
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
