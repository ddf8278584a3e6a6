"""Whether a run of several machines can go on, and whose fault it is where it cannot."""

from __future__ import annotations

import signal
import sys
import time

from adaptft.errors import AdaptftError, TrainingError
from adaptft.training.heartbeat import SILENCE_SECONDS, Heartbeat
from adaptft.training.seats import Seat
from adaptft.training.table import AGAIN, Table
from adaptft.units import format_seconds

RETURN_SECONDS = 600.0
"""How long a run that may begin again waits for a machine that is gone."""
LOOK_SECONDS = 0.2
JUDGE_SECONDS = SILENCE_SECONDS + 10.0
"""How long the first machine waits for the others to say how they ended."""


class Watch:
    """Looks at the table and at the signs of life; the first machine judges, the others hear of it.

    Keys: ``end`` says why the run ended, ``stop`` that somebody told a machine to stop, ``failed`` whose ranks failed
    first, ``failed/RANK`` and ``done/RANK`` that a machine has ended.
    """

    def __init__(self, seat: Seat, table: Table, heartbeat: Heartbeat, *, max_restarts: int) -> None:
        self._seat, self._table, self._heartbeat, self._max_restarts = seat, table, heartbeat, max_restarts
        self._called_gone: set[int] = set()

    def look(self) -> None:
        """See whether the run can go on; called a few times a second while it does.

        Raises:
            TrainingError: another machine stopped or is gone.
            KeyboardInterrupt: another machine was told to stop.
        """
        self.require_going()
        if self._seat.is_first and self._table.has("failed"):
            self._judge()
            self._require_no_end()
        for rank in self._heartbeat.silent():
            if self._table.has(f"done/{rank}"):
                continue
            if self._max_restarts == 0 or self._heartbeat.silence(rank) > RETURN_SECONDS:
                raise TrainingError(self._gone(rank), fix=AGAIN)
            self._call_gone(rank)
        for rank in [rank for rank in self._called_gone if self._heartbeat.silence(rank) < SILENCE_SECONDS]:
            self._called_gone.discard(rank)
            _say(f"{machine_name(self._table, rank)} is back.")

    def require_going(self) -> None:
        """Raises ``TrainingError`` where the run has ended, and ``KeyboardInterrupt`` where it is told to stop."""
        self._require_no_end()
        self._heed_stop()

    def blame(self, status: int) -> None:
        """Find out who is at fault where this machine's ranks ended with ``status``: those of a lost machine fail too.

        Raises:
            TrainingError: another machine is.
            KeyboardInterrupt: the run was stopped on purpose.
        """
        self._heed_stop()
        self._table.set_first("failed", {"rank": self._seat.rank, "status": status})
        self._table.set(f"failed/{self._seat.rank}", status)
        if self._seat.is_first:
            self._judge()
        deadline = time.monotonic() + JUDGE_SECONDS
        while not self._table.has("end") and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self._require_no_end()

    def end(self, cause: BaseException) -> None:
        """End the run on all machines because of ``cause``, unless it has ended."""
        problem, fix = f"{type(cause).__name__}, which its own output explains.", AGAIN
        if isinstance(cause, AdaptftError):
            problem, fix = cause.problem, cause.fix
        rank = self._seat.rank
        self._end(rank, f"{machine_name(self._table, rank)} stopped: {problem}", fix)

    def _judge(self) -> None:
        """On the first machine: a machine that is gone is at fault, else the one whose ranks failed first."""
        deadline = time.monotonic() + JUDGE_SECONDS
        others = range(1, self._seat.nodes)
        while time.monotonic() < deadline and not all(self._has_ended(rank) for rank in others):
            if gone := [rank for rank in self._heartbeat.silent() if not self._has_ended(rank)]:
                self._end(gone[0], self._gone(gone[0]), AGAIN)
                return
            time.sleep(LOOK_SECONDS)
        failed = self._table.get("failed")
        problem = f"stopped: a worker there ended with status {failed['status']}."
        fix = "See what it printed, mend that, and start again with --resume_from_checkpoint auto."
        self._end(failed["rank"], f"{machine_name(self._table, failed['rank'])} {problem}", fix)

    def _end(self, rank: int, problem: str, fix: str) -> None:
        self._table.set_first("end", {"rank": rank, "problem": problem, "fix": fix})

    def _require_no_end(self) -> None:
        """Raises ``TrainingError`` where the run has ended, unless this machine is why."""
        if self._heartbeat.is_cut_off:
            raise self._table.is_gone()
        if self._table.has("end"):
            said = self._table.get("end")
            if said["rank"] != self._seat.rank:
                raise TrainingError(said["problem"], fix=said["fix"])

    def _heed_stop(self) -> None:
        """Stop where another machine was told to: as if this one had been."""
        if self._table.has("stop"):
            signal.raise_signal(signal.SIGTERM)

    def _has_ended(self, rank: int) -> bool:
        return self._table.has(f"failed/{rank}") or self._table.has(f"done/{rank}")

    def _gone(self, rank: int) -> str:
        silence = format_seconds(self._heartbeat.silence(rank))
        return f"{machine_name(self._table, rank)} is gone: no sign of life for {silence}."

    def _call_gone(self, rank: int) -> None:
        if rank not in self._called_gone:
            self._called_gone.add(rank)
            wait = format_seconds(RETURN_SECONDS)
            _say(f"{machine_name(self._table, rank)} is gone; waiting up to {wait} for it to come back.")


def machine_name(table: Table, rank: int) -> str:
    """``Machine 1 (gpu-b)``."""
    key = f"machine/{rank}"
    host = table.attempt(lambda: table.get(key) if table.has(key) else None)
    return f"Machine {rank} ({host})" if host else f"Machine {rank}"


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
