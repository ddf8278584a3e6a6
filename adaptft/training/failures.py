"""Why several ranks ended: each leaves a file that says so, and the process that started them tells the first cause.

When a rank fails, the others fail too, at the next exchange; what they say is not the cause.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from adaptft.errors import AdaptftError, OutputError, TrainingError
from adaptft.records import read_json, write_json
from adaptft.training.checkpoints import newest_whole

T = TypeVar("T")
Kind = Literal["told", "bug", "lost"]
KINDS: tuple[Kind, ...] = ("told", "bug", "lost")
"""``told``: an error in two lines; ``bug``: anything else; ``lost``: another rank is gone. Earlier ones say more."""
_LOST = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|timed out|timeout|socket|nccl|gloo", re.I)
_TIMEOUT = re.compile(r"timed out|timeout", re.I)
SIGNAL_CAUSES: dict[int, str] = {
    signal.SIGKILL: "as the system does where the host runs out of memory",
    signal.SIGABRT: "as NCCL does to a rank whose partners do not answer",
}
ENDINGS = "endings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a rank says of its end; ``at`` is wall-clock time in seconds."""

    rank: int
    kind: Kind
    problem: str
    fix: str
    exit_code: int
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How torchrun saw a rank end; negative codes are signals."""

    rank: int
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endings:
    """The ranks that torchrun saw fail before it stopped the others."""

    endings: tuple[Ending, ...]


def of(cause: Exception, rank: int) -> Failure:
    """What ``cause`` ended ``rank`` with."""
    if isinstance(cause, AdaptftError):
        return Failure(
            rank=rank, kind="told", problem=cause.problem, fix=cause.fix, exit_code=cause.exit_code, at=time.time()
        )
    said = (str(cause).strip().splitlines() or [""])[0].rstrip(".")
    problem = f"{type(cause).__name__}: {said}"
    return Failure(
        rank=rank, kind=_kind(cause), problem=problem, fix="", exit_code=AdaptftError.exit_code, at=time.time()
    )


def _kind(cause: BaseException | None) -> Kind:
    while cause is not None:
        if isinstance(cause, RuntimeError) and _LOST.search(str(cause)):
            return "lost"
        cause = cause.__cause__ or cause.__context__
    return "bug"


def leave(failure: Failure, folder: Path) -> None:
    """Write ``failure`` where the process that started the ranks looks for it."""
    write_json(folder / f"failure-{failure.rank}.json", failure)


def found_in(folder: Path) -> tuple[list[Failure], list[Ending]]:
    """What ranks left in ``folder``, and what torchrun saw."""
    told = [_read(Failure, path) for path in sorted(folder.glob("failure-*.json"))]
    path = folder / ENDINGS
    return told, list(_read(Endings, path).endings) if path.exists() else []


def _read(kind: type[T], path: Path) -> T:
    return read_json(kind, path, error=OutputError, what="account of a rank", fix="Start the run again.")


def explain(failures: list[Failure], endings: list[Ending], num_ranks: int, output_dir: Path) -> AdaptftError:
    """The error for a run of ``num_ranks``: its first cause, which rank it was, and how to go on."""
    kept, go_on = what_is_kept(output_dir)
    told = sorted((f for f in failures if f.kind == "told"), key=lambda failure: failure.at)
    if told:
        return _first_told(told, num_ranks)
    killed = [e for e in endings if e.exit_code < 0 and -e.exit_code != signal.SIGTERM]
    if killed:
        number = -killed[0].exit_code
        cause = f" ({SIGNAL_CAUSES[number]})" if number in SIGNAL_CAUSES else ""
        ended = f"was killed by {signal.Signals(number).name}{cause}"
        return TrainingError(f"Rank {killed[0].rank} of {num_ranks} {ended}. {kept}.", fix=f"Mend that, and {go_on}")
    others = sorted(failures, key=lambda failure: (KINDS.index(failure.kind), failure.at))
    if not others:
        return TrainingError(f"The ranks of the run ended without a word. {kept}.", fix=f"Look above, and {go_on}")
    return TrainingError(f"{_ended(others[0], num_ranks)} {kept}.", fix=f"Mend that, and {go_on}")


def _first_told(told: list[Failure], num_ranks: int) -> AdaptftError:
    """The first of the errors that ranks told; what all of them found needs no rank named."""
    first = told[0]
    is_of_all = sum(failure.problem == first.problem for failure in told) == num_ranks
    error = TrainingError(
        first.problem if is_of_all else f"Rank {first.rank} of {num_ranks}: {first.problem}", fix=first.fix
    )
    error.exit_code = first.exit_code  # type: ignore[misc]
    return error


def _ended(failure: Failure, num_ranks: int) -> str:
    who = f"Rank {failure.rank} of {num_ranks}"
    if failure.kind == "bug":
        return f"{who} stopped with {failure.problem}; its traceback stands above."
    if _TIMEOUT.search(failure.problem):
        return f"{who} waited in vain for the others: {failure.problem}."
    return f"{who} lost the others: {failure.problem}."


def what_is_kept(output_dir: Path) -> tuple[str, str]:
    """Which checkpoint is whole, and how to go on, as parts of sentences."""
    last = newest_whole(output_dir)[0]
    if last is None:
        return "There is no checkpoint yet", "start the run again."
    return f"The last good checkpoint is {last}", "go on with --resume_from_checkpoint auto."


def waits(seconds: int) -> str:
    """How long ranks wait for each other, in words."""
    return f"one that does not answer for {seconds // 60} min {seconds % 60:02d} s ends the run"
