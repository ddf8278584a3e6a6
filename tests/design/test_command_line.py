"""The command line as a contract: its flags, its help, the recipes and the commands in the READMEs."""

import json
import os
import re
import shlex

import click
import pytest
from source_tree import ROOT

from adaptft.cli import COMMANDS, group
from adaptft.cli.arguments import split_arguments
from adaptft.cli.options import ExampleCommand, RequestCommand
from adaptft.parsing import parse_request
from adaptft.parsing.fields import option_fields
from adaptft.requests import ExportRequest, TrainRequest

FLAGS = ROOT / "tests" / "design" / "flags.json"
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
CONTEXT = click.Context(group, info_name="adaptft")


def command(name):
    found = group.get_command(CONTEXT, name)
    assert found is not None
    return found


def context(name):
    found = command(name)
    return click.Context(found, info_name=name, parent=CONTEXT, **found.context_settings)


def own_options(name):
    params = command(name).get_params(context(name))
    return [option for param in params if isinstance(param, click.Option) for option in param.opts]


def flags(name):
    found = command(name)
    requests = [f"--{field}" for field in option_fields(found.kind)] if isinstance(found, RequestCommand) else []
    return sorted([*requests, *own_options(name)])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_what_the_command_does_and_an_example(name):
    found = command(name)
    assert isinstance(found, ExampleCommand)
    help_text = found.get_help(context(name))
    assert help_text.startswith(COMMANDS[name])
    assert help_text.index("Example") < help_text.index("Usage:")
    assert f"adaptft {name}" in found.example
    assert all(flag in help_text for flag in flags(name))


def test_the_set_of_flags_changes_only_on_purpose():
    """Run with ADAPTFT_UPDATE_GOLDEN=1 to accept the flags as they are."""
    now = {name: flags(name) for name in COMMANDS}
    if os.environ.get("ADAPTFT_UPDATE_GOLDEN"):
        FLAGS.write_text(json.dumps(now, indent=2) + "\n")
    assert now == json.loads(FLAGS.read_text())


@pytest.mark.parametrize(
    ("kind", "path"),
    [(TrainRequest, p) for p in sorted((ROOT / "recipes").glob("*.yaml"))]
    + [(ExportRequest, p) for p in sorted((ROOT / "export").glob("*.yaml"))],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_shipped_recipe_parses_without_a_note(kind, path):
    parsed = parse_request(kind, {}, path)
    assert parsed.notes == ()
    assert parsed.given


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_a_recipe_is_named_for_its_model_and_method(path):
    request = parse_request(TrainRequest, {}, path).request
    assert path.stem == f"{request.model}-{request.train_type}"


def readme_commands():
    """Every ``adaptft ...`` line of a fenced block, continued lines joined."""
    for readme in READMES:
        text = readme.read_text(encoding="utf-8") if readme.exists() else ""
        for block in re.findall(r"^```(?:bash|sh|shell|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
                if line.startswith("adaptft "):
                    yield pytest.param(line, id=f"{readme.name}: {line[:60]}")


@pytest.mark.parametrize("line", [*readme_commands(), *(f for n in COMMANDS for f in [f"adaptft {n} --help"])])
def test_every_command_in_a_readme_exists_with_its_options(line):
    words = shlex.split(line.split(" | ")[0].split(" > ")[0], comments=True)
    name, rest = words[1], words[2:]
    if name.startswith("-"):
        assert name in ("--help", "--version")
        return
    found = command(name)
    own = own_options(name)
    if isinstance(found, RequestCommand):
        options = split_arguments(found.kind, rest, own=own, recipe=not found.positional.startswith("[MODEL")).options
        required = {n for n, f in option_fields(found.kind).items() if f.required}
        fill = {n: "merged" if n == "format" else "m" for n in required if n not in options}
        parse_request(found.kind, options | fill)
    else:
        assert [w for w in rest if w.startswith("-") and w.split("=")[0] not in own] == []


def test_every_example_in_a_help_page_parses():
    for name in COMMANDS:
        for line in command(name).example.splitlines():
            test_every_command_in_a_readme_exists_with_its_options(line)
