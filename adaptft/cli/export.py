"""adaptft export."""

from __future__ import annotations

from pathlib import Path

import click

from adaptft.cli.options import json_option, request_command
from adaptft.parsing import Parsed
from adaptft.requests import ExportRequest

EXAMPLE = """\
adaptft export --format fp8 --adapters output/my-run
adaptft export --format awq --model output/my-full-run --dataset data.jsonl"""


@request_command(ExportRequest, example=EXAMPLE)
@click.option(
    "--machine",
    "target_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The machine that will serve the export (its adaptft probe --json), where it is not this one.",
)
@json_option
def command(parsed: Parsed[ExportRequest], target_file: Path | None, as_json: bool) -> None:
    """Merge or compress a result into a checkpoint that vLLM and transformers load.

    Plans first and prints the plan; then merges, compresses, loads the export back and compares its
    loss with the source's. Calibration rows come from the training data.
    """

    from adaptft import exporting, hardware, models, shapes
    from adaptft.cli.export_page import render_export_plan, render_export_report
    from adaptft.cli.screens import progress_lines, show
    from adaptft.policy.formats import plan_export
    from adaptft.records import dumps
    from adaptft.writable import check_folder

    request = parsed.request
    if request.output_dir is not None:
        check_folder(Path(request.output_dir), option="--output_dir")  # before a model is fetched
    source = exporting.find_source(request)
    folder = exporting.output_folder(request, source)
    target = hardware.read_machine(target_file) if target_file else None
    shape = shapes.model_shape(models.read_config(str(source.base.path)), source.base.name)
    plan = plan_export(hardware.probe(folder), shape, request, target=target, is_qlora=source.is_qlora)
    if not as_json:
        show(render_export_plan(plan, source.title, folder, parsed.notes))
    report = exporting.export(plan, source, folder, progress=progress_lines())
    if as_json:
        click.echo(dumps(report), nl=False)
    else:
        show(render_export_report(report))
