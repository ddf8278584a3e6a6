"""Where a run happens: in this process, in one torchrun worker for each rank, or so on each of several machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from adaptft import quiet
from adaptft.errors import DoesNotFit, Interrupted, MachineError, OutputError, RequestError
from adaptft.facts import Machine
from adaptft.plans import TrainPlan
from adaptft.reports import RunReport
from adaptft.training import folders, interruption, numerics
from adaptft.training.meeting import Meeting, meet
from adaptft.training.workers import needs_workers, run_workers

MEMORY_TOLERANCE = 0.02
"""Tools differ this much on how much memory the same board has."""


def launch(plan: TrainPlan, output_dir: Path, meeting: Meeting | None = None) -> RunReport:
    """Check the machine, take the folder, run. See ``adaptft.training.train``."""
    if meeting is None and (plan.request.nnodes or 1) > 1:
        with meet(plan.request) as meeting:
            return launch(plan, output_dir, meeting)
    if not plan.fits:
        raise DoesNotFit("The plan does not fit its machine.", fix="See its rejected options: adaptft plan.")
    numerics.set_environment()  # before the probe, which may start CUDA
    if meeting is not None:
        return _launch_among(plan, output_dir, meeting)
    _check_machine(plan)
    folders.check(plan.request, output_dir)
    with interruption.told(output_dir):
        if needs_workers(plan):
            return run_workers(plan, output_dir)
        quiet.libraries()
        from adaptft.training.run import run

        return run(plan, output_dir)


def _launch_among(plan: TrainPlan, output_dir: Path, meeting: Meeting) -> RunReport:
    """This machine's part of a run of several: all look before one begins, and a stop is told in the same words."""
    try:
        with interruption.told(output_dir):
            plan, output_dir = meeting.share(plan, output_dir)
            _check_machine(plan)
            if meeting.seat.is_first:
                folders.check(plan.request, output_dir)
            if meeting.max_restarts:
                plan = _beginning_again(plan, output_dir, meeting)
            meeting.agree()
            return run_workers(plan, output_dir, meeting)
    except Interrupted as stopped:
        meeting.stop()
        if not meeting.seat.is_first:
            raise meeting.interrupted(output_dir) from stopped
        meeting.say_kept(is_saved=stopped.exit_code == 0)
        raise


def _beginning_again(plan: TrainPlan, output_dir: Path, meeting: Meeting) -> TrainPlan:
    """``plan`` for ranks that torchrun may start again: they then go on from the newest checkpoint of this run.

    Raises:
        RequestError: the checkpoint to begin with is named, so that it would be begun with every time.
        OutputError: a machine does not see the output folder, and would not find the checkpoint.
    """
    request = plan.request
    if request.resume_from_checkpoint not in (None, "auto"):
        raise RequestError(
            f"max_restarts {request.max_restarts} goes on from the newest checkpoint, and resume_from_checkpoint names "
            "one.",
            fix="Use --resume_from_checkpoint auto, or leave --max_restarts out.",
        )
    if not meeting.sees(output_dir):
        raise OutputError(
            f"{output_dir} is not the same folder on every machine, and a run that begins again reads its checkpoints "
            "everywhere.",
            fix="Name a folder that all machines share with --output_dir, or leave --max_restarts out.",
        )
    if meeting.seat.is_first:
        folders.replace_run(request, output_dir)
    return replace(plan, request=replace(request, resume_from_checkpoint="auto", overwrite_output_dir=False))


def _check_machine(plan: TrainPlan) -> None:
    if plan.uses_gpu:
        from adaptft.hardware import probe

        require_planned_machine(plan, probe())


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
