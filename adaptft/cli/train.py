"""adaptft train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from adaptft.cli.options import machine_option, request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.plans import TrainPlan
from adaptft.requests import TrainRequest

if TYPE_CHECKING:
    from adaptft.training.resuming import Start

EXAMPLE = """\
adaptft train --model qwen-7b --train_type qlora
adaptft train recipes/qwen2.5-7b-lora.yaml --dataset data.jsonl --output_dir output/mine
adaptft train --model qwen-7b --train_type lora --nnodes 2 --node_rank 0 --master_addr HOST"""


@request_command(TrainRequest, example=EXAMPLE)
@machine_option
def command(parsed: Parsed[TrainRequest], machine_file: Path | None) -> None:
    """Fine-tune a model as planned.

    Plans first (see adaptft plan), prints the plan, and then does what it says. Without --dataset
    the built-in rows are taken. Of several machines the first one plans, and writes the result.
    """
    from adaptft import training
    from adaptft.cli.run_page import render_run
    from adaptft.cli.screens import show
    from adaptft.training.meeting import meet

    with meet(parsed.request) as meeting:
        if meeting is None or meeting.seat.is_first:
            plan, folder = _planned(parsed, machine_file)
        else:
            click.echo(f"{meeting.seat} (they count from 0): waiting for the first one's plan.", err=True)
            plan, folder = meeting.receive()
        report = training.train(plan, folder, meeting)
        if meeting is None or meeting.seat.is_first:
            show(render_run(plan, report, folder))
        else:
            click.echo(f"Finished; the result is on {meeting.name(0)}, in {folder}.")


def _planned(parsed: Parsed[TrainRequest], machine_file: Path | None) -> tuple[TrainPlan, Path]:
    """The plan, once it has been shown, and the folder of its result.

    Raises:
        DoesNotFit: no plan fits.
        AdaptftError: the folder is taken, or what is planned for cannot be read.
    """
    from adaptft.cli.planning import plan_run, refuse_unfit, render_planned
    from adaptft.cli.screens import show, sign_of_life

    start = look_first(parsed.request)
    for note in start.notes:  # now, and not only on the page at the end of the run
        click.echo(note, err=True)
    planned = plan_run(parsed, machine_file)
    if planned.plan.fits and start.is_given:
        from adaptft.training.run import refuse_other_run

        with sign_of_life("comparing with the checkpoint"):
            refuse_other_run(planned.plan, start)
    show(render_planned(planned))
    refuse_unfit(planned.plan)
    return planned.plan, given_folder(planned.plan.request) or default_folder(planned.plan)


def look_first(request: TrainRequest) -> Start:
    """Whether the output folder may be this run's, and where it begins, before minutes of reading.

    Raises:
        RequestError: a run should go on, and nothing says which; or wishes contradict each other.
        OutputError: the folder holds another run, or the checkpoint does not exist or is damaged.
    """
    from adaptft.models.continuing import with_settings_of_adapter
    from adaptft.policy.wishes import check_pairs
    from adaptft.training.folders import check
    from adaptft.training.resuming import starting_point

    check_pairs(with_settings_of_adapter(request))
    folder = given_folder(request)
    if folder is not None:
        check(request, folder)
    return starting_point(request, folder or Path())


def given_folder(request: TrainRequest) -> Path | None:
    """The folder that was asked for, or that of the run that goes on; None for a new one.

    Raises:
        RequestError: a run should go on, and nothing says which.
    """
    if request.output_dir is not None:
        return Path(request.output_dir)
    if request.resume_from_checkpoint == "auto":
        raise RequestError(
            "resume_from_checkpoint auto has no run to go on with.", fix="Name its folder: --output_dir FOLDER"
        )
    if request.resume_from_checkpoint is not None and not request.resume_only_model:
        return Path(request.resume_from_checkpoint).parent
    return None


def default_folder(plan: TrainPlan) -> Path:
    """A new folder, named for the model, the method and the time."""
    from datetime import datetime

    from adaptft.cli.planning import default_output_dir

    return default_output_dir(plan, datetime.now())
