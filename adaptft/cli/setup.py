"""adaptft setup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from adaptft.cli.options import plain_command
from adaptft.errors import ServeError


@plain_command(example="adaptft setup serve\nadaptft setup serve --path /data/vllm-env\nadaptft setup serve --check")
@click.argument("what", type=click.Choice(["serve"]))
@click.option(
    "--path", "folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Where it is made."
)
@click.option("--package", metavar="NAME==VERSION", help="Another vLLM than the one that adaptft was tried with.")
@click.option("--check", "only_check", is_flag=True, help="Check the environment that is there, and make none.")
def command(what: str, folder: Path | None, package: str | None, only_check: bool) -> None:
    """Make the environment that serving runs in, beside this one.

    vLLM needs other versions of torch and compressed-tensors than exporting does. Its GPU or its CPU build is taken, as
    this machine asks for; `adaptft serve` finds it by itself. A call that was broken off goes on where it stopped.
    """
    from adaptft import hardware
    from adaptft.serving import environment

    if only_check:
        python = folder / "bin" / "python" if folder else environment.own_python()
        if python is None:
            raise ServeError("No serving environment was made yet.", fix="Make one: adaptft setup serve")
        checked = environment.check(python)
    else:
        build = environment.choose_build(hardware.probe())
        build = replace(build, package=package) if package else build
        place = folder or environment.default_folder()
        checked = environment.make(place, build, lambda line: click.echo(line, err=True))
    versions = ", ".join(f"{name} {version}" for name, version in sorted(checked.versions.items()))
    click.echo(f"{checked.python} serves on {checked.platform or 'no device'}: {versions}")
