"""Ctrl-C and SIGTERM: both stop a run alike, and what is kept is told in one line."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptft.errors import Interrupted
from adaptft.training.checkpoints import newest_whole


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
        raise interrupted(output_dir) from cause


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt inside; only the main thread may ask for that, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def interrupted(output_dir: Path) -> Interrupted:
    """Which checkpoint is whole and how to go on from it, or that there is none."""
    last = newest_whole(output_dir)[0]
    if last is None:
        return Interrupted(
            f"Interrupted before the first checkpoint: nothing is kept in {output_dir}", fix="start the run again."
        )
    return Interrupted(
        f"Interrupted: {last} is whole",
        fix="go on with the same command and --resume_from_checkpoint auto "
        f"--output_dir {shlex.quote(str(output_dir))}",
    )
