"""adaptft infer."""

from __future__ import annotations

import sys

import click

from adaptft.cli.options import request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.requests import InferRequest

EXAMPLE = """\
adaptft infer output/my-run --prompt "What is the capital of France?"
adaptft infer qwen2.5-7b"""


@request_command(InferRequest, example=EXAMPLE, positional="[MODEL]")
def command(parsed: Parsed[InferRequest]) -> None:
    """Ask one question, or chat in the terminal.

    MODEL is an alias, a hub id, a model or export folder, or an adapter folder (its base comes along).
    Without --prompt a chat starts; with --prompt - the question is read from standard input.
    """
    from adaptft import hardware, inference
    from adaptft.cli.screens import sign_of_life

    request = parsed.request
    with sign_of_life(f"loading {request.model}"):
        speaker = inference.load(request, hardware.probe())
    if request.prompt is None:
        inference.chat(speaker, read=_read_line, write=_write)
        return
    prompt = sys.stdin.read() if request.prompt == "-" else request.prompt
    if not prompt.strip():
        raise RequestError("Standard input holds no question.", fix="Pipe one in, or write it after --prompt.")
    said = inference.answer(speaker, prompt, write=_write)
    click.echo()
    if said.finish_reason == "length":
        click.echo(f"(cut after {said.num_tokens} tokens: --max_new_tokens)", err=True)
    speed = said.num_tokens / max(said.seconds, 1e-9)
    click.echo(f"({said.num_tokens} tokens, {speed:.1f} tokens/s)", err=True)


def _write(text: str) -> None:
    click.echo(text, nl=False)


def _read_line() -> str | None:
    """One line of the user, None at the end of the input or at Ctrl-C."""
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
