"""adaptft eval."""

from __future__ import annotations

from pathlib import Path

from adaptft.cli.options import json_option, request_command
from adaptft.parsing import Parsed
from adaptft.requests import EvalRequest

EXAMPLE = """\
adaptft eval --model qwen-7b --adapters output/my-run --dataset test.jsonl
adaptft eval output/my-run --exports output/my-run-fp8"""


@request_command(EvalRequest, example=EXAMPLE, positional="[MODEL]")
@json_option
def command(parsed: Parsed[EvalRequest], as_json: bool) -> None:
    """Measure loss and perplexity of models side by side, on the same rows.

    All are scored on the same rows: the base first, then adapters, then exports. Only the tokens of
    answers count, as in training. Without --dataset the built-in test rows are taken.
    """
    import click

    from adaptft import evaluation, hardware
    from adaptft.cli.eval_page import render_scores
    from adaptft.cli.screens import progress_lines, show
    from adaptft.records import dumps, write_json
    from adaptft.writable import check_file

    request = parsed.request
    if request.output is not None:
        check_file(Path(request.output), option="--output")
    report = evaluation.evaluate(request, hardware.probe(), progress=progress_lines())
    if request.output is not None:
        write_json(Path(request.output), report)
    if as_json:
        click.echo(dumps(report), nl=False)
    else:
        show(render_scores(report, parsed.notes))
