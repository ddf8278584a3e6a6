"""The output folder: whose it is, and what in it belongs to a run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from adaptft import artifacts
from adaptft.artifacts import plan_text
from adaptft.errors import OutputError
from adaptft.plans import TrainPlan
from adaptft.records import write_json
from adaptft.requests import TrainRequest
from adaptft.training.checkpoints import checkpoint_folders, drop_unfinished

PLAN, REPORT, PARTIAL = "plan.json", "report.json", ".result.partial"
TRACES = (PLAN, REPORT, artifacts.FILE_NAME)
"""Files that say that a run was here."""


def check(request: TrainRequest, output_dir: Path) -> None:
    """Look before anything is done whether ``output_dir`` may become this run's; nothing is changed.

    Raises:
        OutputError: another run is in it and the request neither goes on with it nor replaces it, or it cannot be
            written.
    """
    goes_on = _goes_on_there(request.resume_from_checkpoint, output_dir)
    replaces = request.overwrite_output_dir and request.resume_from_checkpoint is None
    if traces_of_run(output_dir) and not goes_on and not replaces:
        raise OutputError(
            f"{output_dir} holds another run.",
            fix="Choose another --output_dir, go on with --resume_from_checkpoint auto, or replace it with "
            "--overwrite_output_dir true.",
        )
    existing = next(folder for folder in (output_dir, *output_dir.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise OutputError(
            f"Cannot write to {output_dir}: {existing} is {'read-only' if existing.is_dir() else 'a file'}.",
            fix="Choose another --output_dir.",
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
    if plan.request.overwrite_output_dir and plan.request.resume_from_checkpoint is None:
        _remove_run(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    if not traces_of_run(output_dir):
        write_json(output_dir / PLAN, plan_text(plan))


def release(output_dir: Path) -> None:
    """After a run that stopped: leave nothing half; before its first checkpoint, take back what claims the folder."""
    drop_unfinished(output_dir)
    shutil.rmtree(output_dir / PARTIAL, ignore_errors=True)
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
    patterns = ("adapter_*", "model*.safetensors*", "config.json", "README.md", "runs", PARTIAL)
    return [path for pattern in patterns for path in output_dir.glob(pattern)]


def publish(partial: Path, output_dir: Path) -> None:
    """Move a finished result from ``partial`` into ``output_dir``; the description, which makes it one, comes last."""
    entries = sorted(partial.iterdir(), key=lambda path: path.name == artifacts.FILE_NAME)
    for path in entries:
        path.replace(output_dir / path.name)
    partial.rmdir()
