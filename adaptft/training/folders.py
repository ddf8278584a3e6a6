"""The output folder: whose it is, and what in it belongs to a run."""

from __future__ import annotations

import shutil
from pathlib import Path

from adaptft import artifacts
from adaptft.artifacts import plan_text
from adaptft.errors import OutputError, RequestError
from adaptft.plans import TrainPlan
from adaptft.records import write_json
from adaptft.requests import TrainRequest
from adaptft.training.checkpoints import checkpoint_folders
from adaptft.writable import check_folder

PLAN, REPORT, PARTIAL = "plan.json", "report.json", ".result.partial"
STAGING, DISCARDED = ".checkpoint.partial", ".checkpoint.old"
"""Checkpoints that are being written or deleted; a killed run may leave such folders, which are no checkpoints."""
TRACES = (PLAN, REPORT, artifacts.FILE_NAME)
"""Files that say that a run was here."""


def check(request: TrainRequest, output_dir: Path) -> None:
    """Look before anything is done whether ``output_dir`` may become this run's; nothing is changed.

    Raises:
        OutputError: another run is in it and the request neither goes on with it nor replaces it, or it cannot be
            written.
    """
    _require_new_folder_for_weights(request, output_dir)
    goes_on = _goes_on_there(request.resume_from_checkpoint, output_dir)
    replaces = request.overwrite_output_dir and request.resume_from_checkpoint is None
    if traces_of_run(output_dir) and not goes_on and not replaces:
        raise OutputError(
            f"{output_dir} holds another run.",
            fix="Choose another --output_dir, go on with --resume_from_checkpoint auto, or replace it with "
            "--overwrite_output_dir true.",
        )
    check_folder(output_dir, option="--output_dir")


def _require_new_folder_for_weights(request: TrainRequest, output_dir: Path) -> None:
    """A run that begins with a checkpoint's weights is a new one; its checkpoints would mix with the old run's.

    Raises:
        RequestError: it has no checkpoint to begin with.
        OutputError: it would lie in the old run's folder.
    """
    if not request.resume_only_model:
        return
    checkpoint = request.resume_from_checkpoint
    if checkpoint is None or checkpoint == "auto":
        raise RequestError(
            "resume_only_model begins a new run with a checkpoint's weights, and nothing says which.",
            fix="Name one: --resume_from_checkpoint FOLDER/checkpoint-STEP, and another --output_dir.",
        )
    if _goes_on_there(checkpoint, output_dir):
        raise OutputError(
            f"{output_dir} holds the run that {Path(checkpoint).name} is of; its weights alone begin a new run.",
            fix="Choose another --output_dir, or leave --resume_only_model out to go on with this run.",
        )


def _goes_on_there(checkpoint: str | None, output_dir: Path) -> bool:
    """True where the run to go on with is the one in ``output_dir``."""
    if checkpoint is None or checkpoint == "auto":
        return checkpoint is not None
    return Path(checkpoint).absolute().parent.resolve() == output_dir.resolve()


def claim(plan: TrainPlan, output_dir: Path) -> None:
    """Make ``output_dir`` this run's: remove the run it replaces, write the plan.

    What goes on with another run leaves that run's plan in place; its own comes with its result.
    """
    replace_run(plan.request, output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    drop_unfinished(output_dir)
    if not traces_of_run(output_dir):
        write_json(output_dir / PLAN, plan_text(plan))


def replace_run(request: TrainRequest, output_dir: Path) -> None:
    """Remove the run in ``output_dir`` where the request says so."""
    if request.overwrite_output_dir and request.resume_from_checkpoint is None:
        _remove_run(output_dir)


def drop_unfinished(output_dir: Path) -> None:
    """Delete what was being written when a run stopped or was killed."""
    for name in (STAGING, DISCARDED, PARTIAL):
        shutil.rmtree(output_dir / name, ignore_errors=True)


def release(output_dir: Path) -> None:
    """After a run that stopped: leave nothing half; before its first checkpoint, take back what claims the folder."""
    drop_unfinished(output_dir)
    if not checkpoint_folders(output_dir) and not (output_dir / artifacts.FILE_NAME).exists():
        _remove_run(output_dir)
        if output_dir.is_dir() and not any(output_dir.iterdir()):
            output_dir.rmdir()


def traces_of_run(output_dir: Path) -> list[Path]:
    """What an earlier run left in ``output_dir``: its plan, report, description and checkpoints."""
    return [p for name in TRACES if (p := output_dir / name).exists()] + checkpoint_folders(output_dir)


def _remove_run(output_dir: Path) -> None:
    """Delete what a run wrote and nothing else: the folder may hold other people's files."""
    for path in (*traces_of_run(output_dir), *_results(output_dir)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _results(output_dir: Path) -> list[Path]:
    written = ("adapter_*", "model*.safetensors*", "config.json", "README.md", "runs", "bad-steps")
    patterns = (*written, PARTIAL, STAGING, DISCARDED)
    return [path for pattern in patterns for path in output_dir.glob(pattern)]


def publish(partial: Path, output_dir: Path) -> None:
    """Move a finished result from ``partial`` into ``output_dir``; the description, which makes it one, comes last."""
    entries = sorted(partial.iterdir(), key=lambda path: path.name == artifacts.FILE_NAME)
    for path in entries:
        path.replace(output_dir / path.name)
    partial.rmdir()
