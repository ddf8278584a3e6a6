"""``adaptft probe``: what this machine is and what it can do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adaptft.facts import Machine

EXAMPLES = """\b
Examples:
  adaptft probe
  adaptft probe --json > machine.json
  adaptft plan --model qwen-7b --machine machine.json
"""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print the machine as JSON, to be read back with --machine.")
@click.option(
    "--machine",
    "recorded",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Show a recorded machine instead of this one.",
)
def probe(as_json: bool, recorded: Path | None) -> None:
    """Show the GPUs, their links, CPU, memory, disk and software of this machine."""
    from adaptft import hardware
    from adaptft.records import dumps

    machine = hardware.read_machine(recorded) if recorded else hardware.probe()
    if as_json:
        click.echo(dumps(machine), nl=False)
        return
    from rich.console import Console

    Console(highlight=False).print(render_machine(machine))


def render_machine(machine: Machine) -> RenderableType:
    """The machine as one screen: GPUs and what they can do, links, host, software, notes."""
    from adaptft.cli.machine_screen import machine_screen

    return machine_screen(machine)
