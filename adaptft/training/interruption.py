"""Ctrl-C and SIGTERM: the step in progress is finished and saved, and what is kept is told in one line.

While steps are taken the first signal is a wish, which the trainer looks at after each step; a second one, or one that
finds no step's end within ``GRACE_SECONDS``, stops at once. So does any signal outside of the steps.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.errors import Interrupted
from adaptft.training.checkpoints import SEAL, newest_whole

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_SECONDS = 25.0
"""Kubernetes, Slurm and torchrun kill 30 s after they asked."""
STOPPING = b"\nStopping after this step, with a checkpoint; once more to stop at once.\n"


@dataclass(slots=True)
class _Wish:
    """Signals belong to the process, and so does this."""

    finishes_step: bool = False
    came_at: float | None = None
    """Wall-clock time of the first signal."""


_wish = _Wish()


@contextmanager
def told(output_dir: Path) -> Iterator[None]:
    """Turn an interruption of what runs inside into ``Interrupted``, once that has cleaned up.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came.
    """
    try:
        with terminable():
            yield
    except KeyboardInterrupt as cause:
        raise interrupted(output_dir, _wish.came_at) from cause


@contextmanager
def terminable() -> Iterator[None]:
    """Both signals are ours inside; only the main thread may ask for that, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _wish.finishes_step, _wish.came_at = False, None
    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def finishing_steps() -> Iterator[None]:
    """Inside, the first signal waits for the end of a step; ``requested`` says that one came."""
    _wish.finishes_step = True
    try:
        yield
    finally:
        _wish.finishes_step = False
        arrived()


def requested() -> bool:
    """True where the run should stop after this step."""
    return _wish.finishes_step and _wish.came_at is not None


def arrived() -> None:
    """A step's end was reached in time: what is written from here on takes the time it takes."""
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _handle(number: int, frame: Any) -> None:
    is_first, is_rank = _wish.came_at is None, "RANK" in os.environ
    _wish.came_at = _wish.came_at or time.time()
    if _wish.finishes_step and is_first:
        if not is_rank:
            os.write(sys.stderr.fileno(), STOPPING)
        signal.signal(signal.SIGALRM, _stop_now)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
    elif not (_wish.finishes_step and is_rank):  # ranks get every signal twice: from the terminal and from torchrun
        raise KeyboardInterrupt


def _stop_now(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def interrupted(output_dir: Path, since: float | None = None) -> Interrupted:
    """Which checkpoint is whole and how to go on from it, or that there is none.

    Args:
        since: wall-clock time of the signal; a checkpoint sealed since then holds all steps.
    """
    last = newest_whole(output_dir)[0]
    if last is None:
        return Interrupted(
            f"Interrupted before the first checkpoint: nothing is kept in {output_dir}", fix="start the run again."
        )
    is_saved = since is not None and (last / SEAL).stat().st_mtime >= since
    return Interrupted(
        f"Stopped and saved: {last} holds every step" if is_saved else f"Interrupted: {last} is whole",
        fix="go on with the same command and --resume_from_checkpoint auto "
        f"--output_dir {shlex.quote(str(output_dir))}",
        is_saved=is_saved,
    )
