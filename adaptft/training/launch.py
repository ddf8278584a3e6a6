"""Where a run happens: in this process, or in one torchrun worker for each rank.

Workers read the plan from a file and decide nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from adaptft import quiet
from adaptft.errors import DoesNotFit, MachineError, TrainingError
from adaptft.facts import Machine
from adaptft.plans import Placement, TrainPlan
from adaptft.records import read_json, write_json
from adaptft.reports import RunReport
from adaptft.training import failures, folders, interruption, numerics, ranks
from adaptft.training.arguments import uses_gpu

MEMORY_TOLERANCE = 0.02
"""Tools differ this much on how much memory the same board has."""
NCCL_P2P = "NCCL_P2P_DISABLE"
STOP_SECONDS = 40.0
"""torchrun itself kills ranks that have not ended 30 s after it was told to."""


def launch(plan: TrainPlan, output_dir: Path) -> RunReport:
    """Check the machine, take the folder, run. See ``adaptft.training.train``."""
    if not plan.fits:
        raise DoesNotFit("The plan does not fit its machine.", fix="See its rejected options: adaptft plan.")
    numerics.set_environment()  # before the probe, which may start CUDA
    if uses_gpu(plan):
        from adaptft.hardware import probe

        require_planned_machine(plan, probe())
    folders.check(plan.request, output_dir)
    with interruption.told(output_dir):
        if needs_workers(plan):
            return _run_workers(plan, output_dir)
        quiet.libraries()
        from adaptft.training.run import run

        return run(plan, output_dir)


def require_planned_machine(plan: TrainPlan, here: Machine) -> None:
    """Compare the GPUs the plan uses with those of this machine: their names and how much memory they have.

    Raises:
        MachineError: one of them is missing or another one.
    """
    wanted = {gpu.index: gpu for gpu in plan.machine.gpus if gpu.index in plan.decisions.placement.value.gpu_indices}
    present = {gpu.index: gpu for gpu in here.gpus}
    for index, gpu in wanted.items():
        found = present.get(index)
        same = (
            found is not None
            and found.name == gpu.name
            and abs(found.memory_total_bytes / gpu.memory_total_bytes - 1) <= MEMORY_TOLERANCE
        )
        if not same:
            has = "no such GPU" if found is None else f"{found.name}"
            raise MachineError(
                f"The plan was made for another machine: GPU {index} is a {gpu.name} there, and {has} here.",
                fix="Plan again on this machine: leave --machine out.",
            )


def needs_workers(plan: TrainPlan) -> bool:
    """True for several ranks, and where the GPU in use is not the first one CUDA sees."""
    placement = plan.decisions.placement.value
    if placement.num_ranks > 1:
        return True
    return uses_gpu(plan) and placement.gpu_indices[:1] not in ((), (0,))


def worker_command(plan: TrainPlan, plan_file: Path, output_dir: Path, python: str = sys.executable) -> list[str]:
    """torchrun as data: one process for each rank of this host."""
    here = len(plan.decisions.placement.value.gpu_indices) or 1
    return [
        python, "-m", "adaptft.training.elastic", str(plan_file.with_name(failures.ENDINGS)),
        "--standalone", f"--nproc-per-node={here}",
        "-m", "adaptft.training.worker", str(plan_file), str(output_dir),
    ]  # fmt: skip


def visible_devices(placement: Placement, inherited: str | None) -> str:
    """``CUDA_VISIBLE_DEVICES`` that shows the planned GPUs only; indices count within what is visible already."""
    names = inherited.split(",") if inherited else None
    return ",".join(names[index] if names else str(index) for index in placement.gpu_indices)


def without_peer_access(plan: TrainPlan) -> tuple[tuple[int, int], ...]:
    """Pairs of the planned GPUs between which the driver refuses copies; NCCL may hang or read garbage there."""
    chosen = plan.decisions.placement.value.gpu_indices
    links = (link for link in plan.machine.links if link.a in chosen and link.b in chosen)
    return tuple((link.a, link.b) for link in links if link.peer_access is False)


def environment_of_ranks(plan: TrainPlan, inherited: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment that the ranks start in, and what is to be said of it; what is set from outside stays."""
    placement = plan.decisions.placement.value
    environment = dict(inherited)
    if not uses_gpu(plan):
        return environment, ()
    environment["CUDA_VISIBLE_DEVICES"] = visible_devices(placement, inherited.get("CUDA_VISIBLE_DEVICES"))
    apart = without_peer_access(plan)
    if not apart or NCCL_P2P in inherited:
        return environment, ()
    environment[NCCL_P2P] = "1"
    a, b = apart[0]
    return environment, (
        f"GPUs {a} and {b} cannot reach each other's memory: {NCCL_P2P}=1, copies go through the host.",
    )


def _run_workers(plan: TrainPlan, output_dir: Path) -> RunReport:
    placement = plan.decisions.placement.value
    environment, notes = environment_of_ranks(plan, os.environ)
    if placement.num_ranks > 1:
        waits = failures.waits(ranks.timeout_seconds())
        notes = (f"{placement.num_ranks} ranks, {placement.strategy}; {waits}.", *notes)
    print(*notes, sep="\n", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="adaptft-") as folder:
        plan_file = Path(folder) / folders.PLAN
        write_json(plan_file, plan)
        status = _wait(subprocess.Popen(worker_command(plan, plan_file, output_dir), env=environment))
        if status:
            raise failures.explain(*failures.found_in(Path(folder)), placement.num_ranks, output_dir)
        report = plan_file.with_name(folders.REPORT)
        return read_json(RunReport, report, error=TrainingError, what="run report", fix="Start the run again.")


def _wait(workers: subprocess.Popen[bytes]) -> int:
    """The status of torchrun; an interruption is handed on to it, and the ranks get time to clean up."""
    try:
        return workers.wait()
    except KeyboardInterrupt:
        workers.terminate()
        try:
            workers.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            workers.kill()
        raise
