"""The command line: each command parses, calls and renders."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from adaptft import quiet
from adaptft.cli.errors import run
from adaptft.errors import RequestError

# command -> its line in adaptft --help; the module adaptft.cli.NAME holds it as ``command``
COMMANDS: dict[str, str] = {
    "probe": "Show what this machine has, and what it can do.",
    "bench": "Measure how fast this machine is, for plans that are made here.",
    "plan": "Decide how to train on this machine, and say why.",
    "train": "Fine-tune a model as planned.",
    "launch": "Write the job that has Slurm, Kubernetes or Ray carry a plan out.",
    "eval": "Measure loss and perplexity of models side by side, on the same rows.",
    "export": "Merge or compress a result into a checkpoint that vLLM and transformers load.",
    "serve": "Serve a model as an OpenAI-compatible endpoint.",
    "setup": "Make the environment that serving runs in, beside this one.",
    "infer": "Ask one question, or chat in the terminal.",
    "download": "Fetch a model, so that the rest works offline.",
}

EXAMPLES = """\
adaptft probe
adaptft plan  --model qwen-7b --train_type qlora
adaptft train --model qwen-7b --train_type qlora --dataset data.jsonl
adaptft serve output/RESULT
"""


class LazyGroup(click.Group):
    """Commands by name; a module is imported when its command is called and not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a person's work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module, and no other."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"adaptft.cli.{cmd_name}").command
        command.name = cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command on a typo."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from adaptft.parsing.nearest import nearest

            found = nearest(args[0], COMMANDS, cutoff=0.5)
            hint = f"Did you mean adaptft {found}?" if found else f"Commands: {', '.join(COMMANDS)}."
            raise RequestError(f"adaptft has no command {args[0]}.", fix=hint)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it is, examples, commands, options."""
        formatter.write_text(self.help or "")
        with formatter.section("Example"):
            for line in EXAMPLES.splitlines():
                formatter.write(f"  {line}\n")
        with formatter.section("Commands (adaptft COMMAND --help says more)"):
            formatter.write_dl(list(COMMANDS.items()))
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options only: the commands stand above, and listing them must not import them."""
        click.Command.format_options(self, ctx, formatter)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from adaptft import __version__

        click.echo(f"adaptft {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
def group() -> None:
    """Fine-tune large language models on whatever GPU you have."""


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; ends the process with the exit status."""
    quiet.advertisements()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run(lambda: group.main(arguments, prog_name="adaptft", standalone_mode=False)))
