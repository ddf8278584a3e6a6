"""adaptft plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from adaptft.cli.options import json_option, machine_option, request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.requests import TrainRequest

EXAMPLE = """\
adaptft plan --model qwen-7b --train_type qlora
adaptft plan --model qwen-14b --train_type lora --gpu a100-80g
adaptft plan recipes/qwen2.5-7b-lora.yaml --machine machine.json --json"""


@request_command(TrainRequest, example=EXAMPLE)
@machine_option
@click.option("--gpu", metavar="NAME", help="Plan for a GPU that is not here: a10, 4090, a100-80g, h100 ...")
@click.option("--gpus", metavar="NUMBER", type=int, help="How many of them; default: 1.")
@json_option
def command(
    parsed: Parsed[TrainRequest], machine_file: Path | None, gpu: str | None, gpus: int | None, as_json: bool
) -> None:
    """Decide how to train on this machine, and say why.

    Takes the options of adaptft train, and trains nothing. The status is 3 where nothing fits.
    """
    from adaptft.artifacts import plan_text
    from adaptft.cli.planning import find_machine, plan_here, refuse_unfit, render_planned
    from adaptft.cli.screens import show
    from adaptft.policy.assumed import machine_with

    if gpu is not None and machine_file is not None:
        raise RequestError("--gpu and --machine both name a machine.", fix="Leave one of them out.")
    if gpu is None and gpus is not None:
        raise RequestError(f"--gpus {gpus} does not say of which.", fix=f"Add --gpu NAME, or write --num_gpus {gpus}.")
    assumed = machine_with(gpu, 1 if gpus is None else gpus) if gpu is not None else None
    planned = plan_here(parsed, assumed or find_machine(machine_file, parsed.request))
    if assumed:
        planned = replace(planned, notes=(*planned.notes, *assumed.notes))
    if as_json:
        click.echo(plan_text(planned.plan), nl=False)
    else:
        show(render_planned(planned))
    refuse_unfit(planned.plan)
