"""The machines of a run: the first one plans and is obeyed, each says whether it can, and all end together."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from adaptft.errors import AdaptftError, Interrupted, MachineError
from adaptft.plans import TrainPlan
from adaptft.records import from_dict, to_dict
from adaptft.reports import RunReport
from adaptft.requests import TrainRequest
from adaptft.training.heartbeat import Heartbeat, beat_key
from adaptft.training.rendezvous import JOIN_SECONDS, another_connection, open_store
from adaptft.training.seats import Seat, find_seat
from adaptft.training.table import Table
from adaptft.training.watch import LOOK_SECONDS, Watch, machine_name
from adaptft.units import format_seconds

LINGER_SECONDS = 60.0
"""How long the first machine keeps the table for others that are ending."""


@contextmanager
def meet(
    request: TrainRequest, environment: Mapping[str, str] = os.environ, *, patience: float = JOIN_SECONDS
) -> Iterator[Meeting | None]:
    """Join the other machines of the run that ``request`` asks for; None where it is of one machine.

    What ends the block with an error ends the run on all machines.

    Raises:
        RequestError: contradictory options; see ``seats``.
        MachineError: the port is taken, the first machine cannot be reached, or this machine's place is taken.
    """
    seat = find_seat(request, environment)
    if seat is None:
        yield None
        return
    meeting = Meeting(seat, open_store(seat, patience), max_restarts=request.max_restarts, patience=patience)
    try:
        yield meeting
    except BaseException as cause:
        meeting.leave(cause)
        raise
    meeting.close()


class Meeting:
    """What this machine knows of the others."""

    def __init__(self, seat: Seat, store: Any, *, max_restarts: int, patience: float) -> None:
        self.seat, self.max_restarts = seat, max_restarts
        self._table, self._patience = Table(store, seat.endpoint), patience
        self._require_free_seat()
        self._table.set(f"machine/{seat.rank}", socket.gethostname())
        self._table.delete(f"done/{seat.rank}")  # of a process of this machine that was lost
        others = range(1, seat.nodes) if seat.is_first else (0,)
        self._heartbeat = Heartbeat(another_connection(seat), seat.rank, others)
        self._heartbeat.start()
        self.watch = Watch(seat, self._table, self._heartbeat, max_restarts=max_restarts)

    def name(self, rank: int) -> str:
        """``Machine 1 (gpu-b)``."""
        return machine_name(self._table, rank)

    def share(self, plan: TrainPlan, output_dir: Path) -> tuple[TrainPlan, Path]:
        """Publish the plan on the first machine, take that one on all others; what is obeyed is returned."""
        if not self.seat.is_first:
            return self.receive()
        from adaptft.training.results import versions

        run = {"plan": to_dict(plan), "output_dir": str(output_dir.absolute()), "versions": versions()}
        self._table.set("run", run)
        return plan, output_dir

    def receive(self) -> tuple[TrainPlan, Path]:
        """The first machine's plan and output folder, as soon as there are any; downloading may take it an hour.

        Raises:
            MachineError: the first machine has other versions of what shapes a run's numbers.
            TrainingError: the first machine stopped.
        """
        from adaptft.training.agreement import require_same_versions
        from adaptft.training.results import versions

        run = self._wait("run")
        require_same_versions(run["versions"], versions(), self.name(0))
        try:
            return from_dict(TrainPlan, run["plan"]), Path(run["output_dir"])
        except msgspec.ValidationError as cause:
            raise MachineError(
                f"The plan of {self.name(0)} cannot be read here: {cause}.",
                fix="Install the same adaptft on every machine.",
            ) from cause

    def agree(self) -> None:
        """Say that this machine can do its part, and wait for all others to say so.

        Raises:
            MachineError: a machine did not come in time.
            TrainingError: one stopped; what is wrong with it.
        """
        self._table.set(f"ready/{self.seat.rank}", True)
        deadline = time.monotonic() + self._patience
        for rank in range(self.seat.nodes):
            self._wait(f"ready/{rank}", deadline, lambda rank=rank: self._missing(rank))  # type: ignore[misc]

    def sees(self, folder: Path) -> bool:
        """True where every machine finds what the first one writes in ``folder``; all of them ask at once."""
        mark = folder / ".adaptft-meeting"
        if self.seat.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            mark.write_text(token := os.urandom(16).hex())
            self._table.set("mark", token)
        if not self._table.has(own := f"sees/{self.seat.rank}"):  # a machine that comes back was asked before
            self._table.set(own, _reads(mark, self._wait("mark")))
        seen = [self._wait(f"sees/{rank}") for rank in range(self.seat.nodes)]
        if self.seat.is_first:
            mark.unlink()
        return all(seen)

    def publish(self, report: RunReport) -> None:
        """Give the other machines the first one's report."""
        self._table.set("report", to_dict(report))

    def report(self) -> RunReport:
        """The first machine's report, as soon as there is one."""
        return from_dict(RunReport, self._wait("report"))

    def stop(self) -> None:
        """Have the others stop behind the same step; somebody told this machine to."""
        self._table.attempt(lambda: self._table.set("stop", self.seat.rank))

    def say_kept(self, *, is_saved: bool) -> None:
        """On the first machine, after an interruption: whether every step was saved."""
        self._table.attempt(lambda: self._table.set("saved", is_saved))

    def interrupted(self, output_dir: Path) -> Interrupted:
        """What another machine says of a run that was stopped: the first one knows what is kept."""
        is_saved = self._table.attempt(self._saved)
        return Interrupted(
            f"Stopped with {self.name(0)}, where {output_dir} holds what is kept",
            fix="go on with the same commands and --resume_from_checkpoint auto.",
            is_saved=bool(is_saved),
        )

    def _saved(self) -> bool:
        deadline = time.monotonic() + LINGER_SECONDS
        while not self._table.has("saved") and not self._table.has("done/0") and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return self._table.has("saved") and bool(self._table.get("saved"))

    def leave(self, cause: BaseException) -> None:
        """End the run on all machines because of ``cause``, and go."""
        if isinstance(cause, KeyboardInterrupt):
            self.stop()
        else:
            self._table.attempt(lambda: self.watch.end(cause))
        self.close()

    def close(self) -> None:
        """Say that this machine is done; the first one keeps the table until all that are alive have said so."""
        self._table.attempt(lambda: self._table.set(f"done/{self.seat.rank}", True))
        deadline = time.monotonic() + LINGER_SECONDS
        while self.seat.is_first and any(map(self._is_here, range(1, self.seat.nodes))) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        self._heartbeat.end()

    def _is_here(self, rank: int) -> bool:
        return self._has_come(rank) and not self._table.has(f"done/{rank}") and rank not in self._heartbeat.silent()

    def _has_come(self, rank: int) -> bool:
        return self._table.has(f"machine/{rank}")

    def _require_free_seat(self) -> None:
        """Raises ``MachineError`` where another living process has this machine's place."""
        rank = self.seat.rank
        if not self._has_come(rank):
            return
        before = self._table.count(beat_key(rank))
        time.sleep(3.0)
        if self._table.count(beat_key(rank)) != before:
            raise MachineError(
                f"node_rank {rank} is taken: {self.name(rank)} runs with it.",
                fix="Give every machine a --node_rank of its own.",
            )

    def _wait(self, key: str, deadline: float | None = None, missing: Callable[[], AdaptftError] | None = None) -> Any:
        """The value of ``key``, as soon as there is one.

        Raises:
            AdaptftError: the deadline has passed, or a machine stopped.
        """
        while not self._table.has(key):
            self.watch.require_going()
            if deadline is not None and time.monotonic() > deadline:
                raise self._table.is_gone() if missing is None else missing()
            time.sleep(LOOK_SECONDS)
        return self._table.get(key)

    def _missing(self, rank: int) -> MachineError:
        return MachineError(
            f"{self.name(rank)} did not come within {format_seconds(self._patience)}, and the run is of "
            f"{self.seat.nodes} machines.",
            fix=f"Start the same command there with --node_rank {rank}; it must reach {self.seat.endpoint}.",
        )


def _reads(mark: Path, token: str) -> bool:
    try:
        return mark.read_text() == token
    except OSError:
        return False
