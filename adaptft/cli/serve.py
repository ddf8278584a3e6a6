"""adaptft serve."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from adaptft.cli.options import machine_option, request_command
from adaptft.errors import RequestError
from adaptft.parsing import Parsed
from adaptft.plans import ServePlan
from adaptft.requests import ServeRequest

if TYPE_CHECKING:
    from rich.table import Table

    from adaptft.serving import Endpoint

EXAMPLE = """\
adaptft serve output/my-run
adaptft serve qwen2.5-7b --adapters math=output/math law=output/law
adaptft serve output/my-run-fp8 --print --as compose > compose.yaml"""
KEY_VARIABLE = "ADAPTFT_API_KEY"


@request_command(ServeRequest, example=EXAMPLE, positional="[MODEL]")
@machine_option
@click.option("--print", "only_print", is_flag=True, help="Print the engine's command and start nothing.")
@click.option(
    "--as", "form", type=click.Choice(["compose", "kubernetes"]), help="Print a file for it instead of a command."
)
@click.option("--image", metavar="NAME:TAG", help="Image in that file; default: the engine's own.")
@click.option(
    "--check",
    "only_check",
    is_flag=True,
    help="Compare tokens and answers of the endpoint (running, or started for this) with training's, and end.",
)
def command(
    parsed: Parsed[ServeRequest],
    machine_file: Path | None,
    only_print: bool,
    form: Literal["compose", "kubernetes"] | None,
    image: str | None,
    only_check: bool,
) -> None:
    """Serve a model as an OpenAI-compatible endpoint.

    MODEL is an alias, a hub id, a model or export folder, or an adapter folder (its base comes along).
    vLLM serves where `adaptft setup serve`, this environment or --vllm-python has it; transformers otherwise.
    """
    from adaptft import hardware, serving
    from adaptft.serving.child import check_port

    request, only_print = parsed.request, only_print or form is not None
    if image and not form:
        raise RequestError("--image is for files.", fix="Add --as compose or --as kubernetes.")
    api_key = request.api_key or os.environ.get(KEY_VARIABLE) or None
    request = replace(request, api_key=api_key)
    if machine_file is not None and not only_print:
        raise RequestError("--machine is for plans that are shown, not started.", fix="Add --print, or leave it out.")
    url = serving.base_url(request.host, request.port)
    if only_check and (models := serving.served_models(url, api_key)) is not None:
        plan = serving.plan_endpoint(_as_served(request, models), hardware.probe(), must_start=False)
        _check(url, plan, api_key)
        return
    if not only_print:
        check_port(request.host, request.port)  # before a model is fetched
    machine = hardware.read_machine(machine_file) if machine_file else hardware.probe()
    plan = serving.plan_endpoint(
        request, machine, must_start=not only_print, is_recorded=machine_file is not None
    )  # fmt: skip
    _show_on_stderr(plan)
    if form:
        from adaptft.serving.deploying import deployment

        click.echo(deployment(plan, form, image=image, has_key=api_key is not None), nl=False)
        return
    if only_print:
        from adaptft.serving.commands import shell_line

        click.echo(shell_line(plan, {} if machine_file else os.environ, api_key=api_key))
        return
    log = _to_stderr
    if only_check:
        with serving.running(plan, api_key=api_key, log=log) as endpoint:
            _check(endpoint.url, plan, api_key)
        return
    serving.serve(plan, api_key=api_key, on_ready=_say_ready, log=log)


def _as_served(request: ServeRequest, models: dict[str, str]) -> ServeRequest:
    """An endpoint of ours holds adapters that vLLM, which a plan is otherwise for, could not."""
    from adaptft.serving.endpoint import OWNER

    return replace(request, infer_backend="transformers") if OWNER in models.values() else request


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)


def _check(url: str, plan: ServePlan, api_key: str | None) -> None:
    from adaptft import serving

    for checked in serving.check_endpoint(url, plan, api_key=api_key, log=_to_stderr):
        ties = f" ({checked.num_ties} part at a near tie)" if checked.num_ties else ""
        click.echo(
            f"{checked.name}: the tokens of {checked.num_rows} rows are those of training, and {checked.num_answers} "
            f"greedy answers those of the model{ties}; rows: {checked.rows}"
        )


def _say_ready(endpoint: Endpoint) -> None:
    from adaptft.units import format_seconds

    took = format_seconds(endpoint.seconds_to_start)
    click.echo(f"Ready: {endpoint.url} serves {', '.join(endpoint.models)} (after {took}; Ctrl-C ends it)")
    if len(endpoint.models) > 1:
        click.echo(f'Send "model": "{endpoint.models[0]}" for the adapter; "{endpoint.models[-1]}" is the base alone.')


def _show_on_stderr(plan: ServePlan) -> None:
    """The plan beside its reasons; stdout stays free for the command or the ready line."""
    from rich.console import Group

    from adaptft.cli.screens import show
    from adaptft.cli.tables import remarks

    show(Group(_table(plan), *([remarks(plan.warnings, mark="!")] if plan.warnings else [])), stderr=True)


def _table(plan: ServePlan) -> Table:
    from rich.table import Table

    from adaptft.units import format_bytes

    values = {
        "engine": plan.engine_version or plan.backend,
        "dtype": plan.dtype,
        "max_model_len": plan.max_model_len,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "max_lora_rank": plan.max_lora_rank,
        "kv_cache_dtype": plan.kv_cache_dtype,
    }
    table = Table.grid(padding=(0, 2))
    for ratio in (None, 1, 2):
        table.add_column(overflow="fold", no_wrap=ratio is None, ratio=ratio)
    table.add_row("model", plan.served_model_name, plan.model_path)
    for name, path in plan.adapters.items():
        table.add_row("adapter", name, path)
    for name, reason in plan.reasons.items():
        table.add_row(name, str(values[name]), reason)
    per_token = f"{plan.kv_cache_bytes_per_token:,} bytes a token on each device"
    table.add_row("kv_cache", format_bytes(plan.kv_cache_bytes), per_token)
    return table
