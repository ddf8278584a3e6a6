"""Ctrl-C and SIGTERM: the step in progress is finished and saved, and what is kept is told in one line.

While steps are taken the first signal is a wish, which the trainer looks at after each step; a second one, or one that
finds no step's end within ``GRACE_SECONDS``, stops at once. So does any signal outside of the steps. Where the main
thread is stuck and hears none of that, ``watchdog`` ends the process.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.errors import Interrupted
from adaptft.training.checkpoints import SEAL, newest_whole
from adaptft.training.watchdog import Watchdog, watching

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_SECONDS = 25.0
"""Kubernetes, Slurm and torchrun kill 30 s after they asked."""
STOPPING = "\nStopping after this step, within {:.0f} s, with a checkpoint; once more to stop at once.\n"


@dataclass(slots=True)
class _Wish:
    """Signals belong to the process, and so does this."""

    finishes_step: bool = False
    came_at: float | None = None
    """Wall-clock time of the first signal."""
    last_good: Path | None = None
    """The newest checkpoint of the run, known without a look at its disk."""
    dog: Watchdog | None = None


_wish = _Wish()


@contextmanager
def told(output_dir: Path) -> Iterator[None]:
    """Turn an interruption of what runs inside into ``Interrupted``, once that has cleaned up.

    A signal that came too late to stop anything is not swallowed: whoever called may have more to do, and should not.

    Raises:
        Interrupted: Ctrl-C or SIGTERM came.
    """
    try:
        with terminable():
            yield
    except KeyboardInterrupt as cause:
        raise interrupted(output_dir, _wish.came_at) from cause
    if _wish.came_at is not None:
        raise Interrupted("The run had come to its end", fix=f"its result is in {output_dir}", is_saved=True)


@contextmanager
def terminable() -> Iterator[None]:
    """Both signals are ours inside; only the main thread may ask for that, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _wish.finishes_step, _wish.came_at, _wish.last_good = False, None, None
    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _stop_now)
    try:
        yield
    finally:
        _hush()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def watched(output_dir: Path) -> Iterator[None]:
    """Inside, a process that was asked to end and is stuck is ended; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    rank = os.environ.get("RANK")
    _wish.dog = Watchdog(
        frozenset(SIGNALS), GRACE_SECONDS, said=lambda: _answer(rank), last_words=lambda: _last_words(output_dir),
        counts_again=rank is None,
    )  # fmt: skip
    try:
        with watching(_wish.dog):
            yield
    finally:
        _wish.dog = None


def _answer(rank: str | None) -> bytes:
    """What a person hears at once after the first signal, from one rank."""
    return STOPPING.format(GRACE_SECONDS).encode() if _wish.finishes_step and rank in (None, "0") else b""


def _last_words(output_dir: Path) -> str:
    if _wish.last_good is None:
        return "There was no checkpoint yet: start the run again."
    return f"The last good checkpoint is {_wish.last_good}; {_way_on(output_dir)}"


def kept(checkpoint: Path) -> None:
    """``checkpoint`` is whole, and the newest."""
    _wish.last_good = checkpoint


@contextmanager
def finishing_steps() -> Iterator[None]:
    """Inside, the first signal waits for the end of a step; ``requested`` says that one came."""
    _wish.finishes_step = True
    try:
        yield
        arrived()
    finally:
        _wish.finishes_step = False
        _hush()


def requested() -> bool:
    """True where the run should stop after this step."""
    return _wish.finishes_step and _wish.came_at is not None


def arrived() -> None:
    """A step's end was reached in time: what is written from here on takes the time it takes."""
    _hush()
    if _wish.dog is not None:
        _wish.dog.arrived()


def _hush() -> None:
    """No alarm any more."""
    if threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _handle(number: int, frame: Any) -> None:
    is_first, is_rank = _wish.came_at is None, "RANK" in os.environ
    _wish.came_at = _wish.came_at or time.time()
    if _wish.finishes_step and is_first:
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
        fix=_way_on(output_dir),
        is_saved=is_saved,
    )


def _way_on(output_dir: Path) -> str:
    there = shlex.quote(str(output_dir))
    return f"go on with the same command and --resume_from_checkpoint auto --output_dir {there}"
