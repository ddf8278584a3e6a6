"""adaptft plan."""

from __future__ import annotations

from pathlib import Path

import click

from adaptft.cli.options import json_option, machine_option, request_command
from adaptft.parsing import Parsed
from adaptft.requests import TrainRequest

EXAMPLE = """\
adaptft plan --model qwen-7b --train_type qlora
adaptft plan recipes/qwen2.5-7b-lora.yaml --machine machine.json --json"""


@request_command(TrainRequest, example=EXAMPLE)
@machine_option
@json_option
def command(parsed: Parsed[TrainRequest], machine_file: Path | None, as_json: bool) -> None:
    """Decide how to train on this machine, and say why.

    Takes the options of adaptft train, and trains nothing. The status is 3 where nothing fits.
    """
    from adaptft.artifacts import plan_text
    from adaptft.cli.planning import plan_here, refuse_unfit, render_planned
    from adaptft.cli.screens import show

    planned = plan_here(parsed, machine_file)
    if as_json:
        click.echo(plan_text(planned.plan), nl=False)
    else:
        show(render_planned(planned))
    refuse_unfit(planned.plan)
