"""Commands made from request classes: their options, their help and their reading."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from adaptft.cli.arguments import RECIPE_ENDINGS, split_arguments
from adaptft.errors import RequestError
from adaptft.parsing import parse_request
from adaptft.parsing.fields import OptionField, option_fields
from adaptft.requests import PLANNED, TrainRequest

F = TypeVar("F", bound=Callable[..., Any])

MACHINE_HELP = "Plan for the machine in this file (adaptft probe --json > FILE), not for this one."
_VALUE_NAMES = {"bool": "", "int": "N", "float": "X", "text": "TEXT", "list": "A B ...", "word": "WORD"}


class ExampleCommand(click.Command):
    """A command whose help begins with what it does and an example to paste."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", {"help_option_names": ["--help", "-h"], "max_content_width": 100})
        super().__init__(*args, **kwargs)
        self.example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; an error then knows the command that it belongs to."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it does, an example, then usage and options."""
        formatter.write_text(inspect.cleandoc(self.help or ""))
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)


class RequestCommand(ExampleCommand):
    """A command with the options of a request class; its function gets the ``Parsed`` request first.

    It gets None where one of the switches ``alone`` is on, which ask for something else.
    """

    def __init__(self, *args: Any, kind: type[Any], positional: str, alone: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind
        self.positional = positional
        self.alone = alone
        self.params.insert(0, click.Argument(["words"], nargs=-1, metavar=positional))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the request's options out of ``args``; the rest is click's."""
        own = [name for p in self.get_params(ctx) if isinstance(p, click.Option) for name in p.opts]
        found = split_arguments(self.kind, args, own=own, recipe=not self.positional.startswith("[MODEL"))
        ctx.obj = found.options
        return super().parse_args(ctx, found.rest)

    def invoke(self, ctx: click.Context) -> Any:
        """Read the request, and call the command's function with it."""
        if any(ctx.params.get(name) for name in self.alone):
            ctx.params.pop("words")
            return super().invoke(ctx)
        recipe, model = _positionals(ctx.params.pop("words"))
        options = dict(ctx.obj)
        if model is not None and "dataset" in option_fields(self.kind) and _is_data(model):
            raise RequestError(f"{model} is a data file, not a model.", fix=f"Did you mean --dataset {model}?")
        if model is not None:
            if "model" in options and options["model"] != model:
                raise RequestError(
                    f"{model} is not a recipe, and --model is {options['model']}.",
                    fix="A recipe ends in .yaml; name one model.",
                )
            options["model"] = model
        own = [name for p in self.get_params(ctx) if isinstance(p, click.Option) for name in p.opts]
        ctx.params["parsed"] = parse_request(self.kind, options, recipe, also=own)
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The request's options under their headings, then the command's own."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for field in option_fields(self.kind).values():
            groups.setdefault(field.group, []).append((_usage(field), _help(field, self.kind)))
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        own = [record for p in params if (record := p.get_help_record(ctx)) is not None]
        for heading, rows in (groups | {"Command": own}).items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=36)
        formatter.write_paragraph()
        switch = next((field.name for field in option_fields(self.kind).values() if field.kind == "bool"), "switch")
        formatter.write_text(
            f"Switches are on when named; --{switch} false turns one off. Lists take several words. "
            "- and _ are the same, and the names of ms-swift, LLaMA-Factory, Axolotl and TRL are understood."
        )


def request_command(
    kind: type[Any], *, example: str, positional: str = "[RECIPE.yaml]", alone: tuple[str, ...] = ()
) -> Callable[[F], RequestCommand]:
    """Make a function a command with the options of ``kind``; its docstring is the help.

    The function gets ``parsed`` (``Parsed[kind]``) and click's own options by name. ``positional`` is
    ``[RECIPE.yaml]`` or ``[MODEL]``: a word that ends in .yaml is always a recipe, another one the model.
    ``alone`` are switches of the command that need no request: the function is then called without ``parsed``.
    """

    def make(function: F) -> RequestCommand:
        return click.command(cls=RequestCommand, kind=kind, example=example, positional=positional, alone=alone)(
            function
        )

    return make


def plain_command(*, example: str) -> Callable[[F], ExampleCommand]:
    """Make a function without a request class a command; its docstring is the help."""

    def make(function: F) -> ExampleCommand:
        return click.command(cls=ExampleCommand, example=example)(function)

    return make


def options_in_order(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Several of click's options on a function, in the order in which ``--help`` lists them."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


machine_option = click.option(
    "--machine", "machine_file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help=MACHINE_HELP
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def _is_data(word: str) -> bool:
    """True for names such as alpaca.jsonl; models are folders, GGUF files or ids."""
    from adaptft.data.sources import SUFFIXES
    from adaptft.data.streams import bare_suffix

    path = Path(word)
    return bare_suffix(path) in SUFFIXES and not path.is_dir()


def _positionals(words: tuple[str, ...]) -> tuple[Path | None, str | None]:
    recipes = [w for w in words if w.lower().endswith(RECIPE_ENDINGS)]
    others = [w for w in words if w not in recipes]
    for several, what in ((recipes, "recipe"), (others, "model")):
        if len(several) > 1:
            raise RequestError(f"{several[1]} is one word too many.", fix=f"Name one {what}; quote values with blanks.")
    return (Path(recipes[0]) if recipes else None), (others[0] if others else None)


def _usage(field: OptionField) -> str:
    return f"--{field.name} {_VALUE_NAMES[field.kind]}".rstrip()


def _help(field: OptionField, kind: type[Any]) -> str:
    missing = [w for w in field.words if w not in field.help]
    choices = f" One of {', '.join(field.words)}." if missing else ""
    planned = " [planned]" if kind is TrainRequest and field.name in PLANNED and "default:" not in field.help else ""
    return field.help + choices + (planned or _default(field))


def _default(field: OptionField) -> str:
    if field.required:
        return " Required."
    if field.default in (None, (), False):
        return ""
    value = " ".join(field.default) if isinstance(field.default, tuple) else field.default
    return f" [{str(value).lower() if isinstance(value, bool) else value}]"
