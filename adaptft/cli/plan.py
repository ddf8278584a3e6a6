"""adaptft plan."""

from __future__ import annotations

from pathlib import Path

import click

from adaptft.cli.options import json_option, machine_option, request_command
from adaptft.parsing import Parsed
from adaptft.requests import TrainRequest

EXAMPLE = """\
adaptft plan --model qwen-7b --train_type qlora
adaptft plan --model qwen-14b --train_type lora --gpu a100-80g
adaptft plan recipes/qwen2.5-7b-lora.yaml --machine machine.json --json"""


@request_command(TrainRequest, example=EXAMPLE)
@machine_option
@click.option("--gpu", metavar="NAME", help="Plan for a GPU that is not here: a10, 4090, a100-80g, h100 ...")
@click.option("--gpus", metavar="NUMBER", type=int, default=1, help="How many of them.")
@json_option
def command(parsed: Parsed[TrainRequest], machine_file: Path | None, gpu: str | None, gpus: int, as_json: bool) -> None:
    """Decide how to train on this machine, and say why.

    Takes the options of adaptft train, and trains nothing. The status is 3 where nothing fits.
    """
    from adaptft.artifacts import plan_text
    from adaptft.cli.planning import find_machine, plan_here, refuse_unfit, render_planned
    from adaptft.cli.screens import show
    from adaptft.policy.gpus import machine_with

    machine = machine_with(gpu, gpus) if gpu else find_machine(machine_file, parsed.request)
    planned = plan_here(parsed, machine)
    if as_json:
        click.echo(plan_text(planned.plan), nl=False)
    else:
        show(render_planned(planned))
    refuse_unfit(planned.plan)
