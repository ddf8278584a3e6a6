"""torchrun and its workers, one for each rank of this machine. Workers read the plan from a file and decide nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from adaptft.errors import AdaptftError, TrainingError
from adaptft.plans import Placement, TrainPlan
from adaptft.policy.links import lacks_peer_copies, without_peer_copies
from adaptft.records import read_json, write_json
from adaptft.reports import RunReport
from adaptft.training import failures, folders, ranks
from adaptft.training.meeting import Meeting
from adaptft.training.rendezvous import interface_to
from adaptft.training.seats import Seat
from adaptft.training.watch import LOOK_SECONDS, RETURN_SECONDS

NCCL_P2P = "NCCL_P2P_DISABLE"
STOP_SECONDS = 40.0
"""torchrun itself kills ranks that have not ended 30 s after it was told to."""


def needs_workers(plan: TrainPlan) -> bool:
    """True for several ranks, and where the GPU in use is not the first one CUDA sees."""
    placement = plan.decisions.placement.value
    if placement.num_ranks > 1:
        return True
    return plan.uses_gpu and placement.gpu_indices[:1] not in ((), (0,))


def worker_command(
    plan: TrainPlan, plan_file: Path, output_dir: Path, *, seat: Seat | None = None, python: str = sys.executable
) -> list[str]:
    """torchrun as data: one process for each rank of this host."""
    placement = plan.decisions.placement.value
    here = max(placement.num_ranks // placement.nodes, 1)
    meeting = ["--standalone"] if seat is None else _rendezvous(seat, plan.request.max_restarts)
    return [
        python, "-m", "adaptft.training.elastic", str(plan_file.with_name(failures.ENDINGS)),
        *meeting, f"--nproc-per-node={here}",
        "-m", "adaptft.training.worker", str(plan_file), str(output_dir),
    ]  # fmt: skip


def _rendezvous(seat: Seat, max_restarts: int) -> list[str]:
    """How torchrun meets the other machines: at the table that the first machine's own process keeps.

    torchrun numbers machines in the order of their names, which nothing else uses; the first one's is also where rank
    0 is reached. So the first machine has rank 0, which writes the result.
    """
    name = seat.address if seat.is_first else f"{seat.address}~{seat.rank:05}"
    return [
        f"--nnodes={seat.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={seat.endpoint}", "--rdzv-id=adaptft",
        f"--rdzv-conf=is_host=false,join_timeout={RETURN_SECONDS:.0f}", f"--local-addr={name}",
        f"--max-restarts={max_restarts}",
    ]  # fmt: skip


def visible_devices(placement: Placement, inherited: str | None) -> str:
    """``CUDA_VISIBLE_DEVICES`` that shows the planned GPUs only; indices count within what is visible already."""
    names = inherited.split(",") if inherited else None
    return ",".join(names[index] if names else str(index) for index in placement.gpu_indices)


def worker_environment(plan: TrainPlan, seat: Seat | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """What torchrun and its ranks see: the planned GPUs, and nothing of a scheduler's own wishes for torchrun."""
    environment = {name: value for name, value in inherited.items() if not name.startswith("PET_")}
    if plan.uses_gpu:
        placement = plan.decisions.placement.value
        environment["CUDA_VISIBLE_DEVICES"] = visible_devices(placement, inherited.get("CUDA_VISIBLE_DEVICES"))
        if lacks_peer_copies(plan.machine, placement.gpu_indices):
            environment.setdefault(NCCL_P2P, "1")
    if seat is not None:
        # else a machine that comes back waits for an address that torchrun wrote once, before it was lost
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        interface = interface_to(seat)
        if interface is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environment


def announcement(plan: TrainPlan, environment: Mapping[str, str]) -> list[str]:
    """What is to be known of the ranks before they start."""
    placement = plan.decisions.placement.value
    lines = []
    if placement.num_ranks > 1:
        waits = failures.waits(ranks.timeout_seconds())
        lines.append(f"{placement.num_ranks} ranks, {placement.strategy}; {waits}.")
    if plan.uses_gpu and (apart := without_peer_copies(plan.machine, placement.gpu_indices)):
        a, b = apart[0]
        lines.append(f"GPUs {a} and {b} cannot reach each other's memory: {NCCL_P2P}={environment[NCCL_P2P]}.")
    return lines


def run_workers(plan: TrainPlan, output_dir: Path, meeting: Meeting | None = None) -> RunReport:
    """Carry the plan out in workers, beside those of the other machines.

    Raises:
        TrainingError: a worker, or another machine, stopped.
    """
    seat = None if meeting is None else meeting.seat
    with tempfile.TemporaryDirectory(prefix="adaptft-") as folder:
        plan_file = Path(folder) / folders.PLAN
        write_json(plan_file, plan)
        command = worker_command(plan, plan_file, output_dir, seat=seat)
        environment = worker_environment(plan, seat, os.environ)
        for line in announcement(plan, environment):
            print(line, file=sys.stderr)
        workers = subprocess.Popen(command, env=environment)
        status = _wait(workers) if meeting is None else _wait_among(workers, meeting, output_dir)
        if status:
            num_ranks = plan.decisions.placement.value.num_ranks
            raise failures.explain(*failures.found_in(Path(folder)), num_ranks, output_dir)
        if meeting is not None and not meeting.seat.is_first:
            return meeting.report()
        written = plan_file.with_name(folders.REPORT)
        report = read_json(RunReport, written, error=TrainingError, what="run report", fix="Start the run again.")
        if meeting is not None:
            meeting.publish(report)
        return report


def _nothing() -> None:
    """What there is to do about other machines where there are none."""


def _wait(
    workers: subprocess.Popen[bytes], look: Callable[[], None] = _nothing, pass_on: Callable[[], None] = _nothing
) -> int:
    """The status of torchrun; an interruption is handed on to it, and the ranks get time to clean up.

    ``look`` is called a few times a second, and ends the waiting with what it raises; ``pass_on`` tells other machines
    of an interruption.
    """
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return workers.wait(LOOK_SECONDS)
            look()
    except KeyboardInterrupt:
        pass_on()
        workers.terminate()
        try:
            workers.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            kill_all(workers)
        raise


def _wait_among(workers: subprocess.Popen[bytes], meeting: Meeting, output_dir: Path) -> int:
    """As ``_wait``; where another machine fails, ranks that wait for it are killed, and what they left half is removed.

    Raises:
        TrainingError: another machine stopped or is gone.
    """
    try:
        status = _wait(workers, meeting.watch.look, meeting.stop)
        if status:
            meeting.watch.blame(status)
        return status
    except AdaptftError:
        kill_all(workers)
        if meeting.seat.is_first:
            folders.release(output_dir)
        raise


def kill_all(workers: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks at once: they wait in a collective, which nothing softer ends."""
    try:
        ranks = psutil.Process(workers.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        ranks = []
    workers.kill()
    for rank in ranks:
        with suppress(psutil.NoSuchProcess):
            rank.kill()
    workers.wait()
