"""adaptft train."""

from __future__ import annotations

from pathlib import Path

from adaptft.cli.options import machine_option, request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.plans import TrainPlan
from adaptft.requests import TrainRequest

EXAMPLE = """\
adaptft train --model qwen-7b --train_type qlora
adaptft train recipes/qwen2.5-7b-lora.yaml --dataset data.jsonl --output_dir output/mine"""


@request_command(TrainRequest, example=EXAMPLE)
@machine_option
def command(parsed: Parsed[TrainRequest], machine_file: Path | None) -> None:
    """Fine-tune a model as planned.

    Plans first (see adaptft plan), prints the plan, and then does what it says. Without --dataset
    the built-in rows are taken.
    """
    from adaptft.cli.planning import plan_run, refuse_unfit, render_planned
    from adaptft.cli.run_page import render_run
    from adaptft.cli.screens import show
    from adaptft.training.folders import check as check_folder

    if parsed.request.output_dir is not None:
        check_folder(parsed.request, Path(parsed.request.output_dir))  # before minutes of reading
    planned = plan_run(parsed, machine_file)
    show(render_planned(planned))
    refuse_unfit(planned.plan)
    folder = output_folder(planned.plan)

    from adaptft import training

    report = training.train(planned.plan, folder)
    show(render_run(planned.plan, report, folder))


def output_folder(plan: TrainPlan) -> Path:
    """The folder that was asked for, the run that goes on, or a new one named for the time.

    Raises:
        RequestError: a run should go on, and nothing says which.
    """
    from datetime import datetime

    from adaptft.cli.planning import default_output_dir

    request = plan.request
    if request.output_dir is not None:
        return Path(request.output_dir)
    if request.resume_from_checkpoint == "auto":
        raise RequestError(
            "resume_from_checkpoint auto has no run to go on with.", fix="Name its folder: --output_dir FOLDER"
        )
    if request.resume_from_checkpoint is not None and not request.resume_only_model:
        return Path(request.resume_from_checkpoint).parent
    return default_output_dir(plan, datetime.now())
