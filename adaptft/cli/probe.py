"""adaptft probe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from adaptft.cli.options import plain_command

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adaptft.facts import Machine

EXAMPLE = "adaptft probe\nadaptft probe --json > machine.json\nadaptft plan --model qwen-7b --machine machine.json"


@plain_command(example=EXAMPLE)
@click.option("--json", "as_json", is_flag=True, help="Print the machine as JSON, to be read back with --machine.")
@click.option(
    "--machine",
    "recorded",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show a recorded machine, not this one.",
)
def command(as_json: bool, recorded: Path | None) -> None:
    """Show what this machine has, and what it can do.

    GPUs and their links, CPU, memory, disk and software. Works without a GPU too.
    """
    from adaptft import hardware
    from adaptft.records import dumps

    machine = hardware.read_machine(recorded) if recorded else hardware.probe()
    if as_json:
        click.echo(dumps(machine), nl=False)
        return
    from adaptft.cli.screens import show

    show(render_machine(machine))


def render_machine(machine: Machine) -> RenderableType:
    """The machine as one screen: GPUs and what they can do, links, host, software, notes."""
    from adaptft.cli.machine_screen import machine_screen

    return machine_screen(machine)
