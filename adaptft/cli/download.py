"""adaptft download."""

from __future__ import annotations

import click

from adaptft.cli.options import plain_command
from adaptft.requests import Hub


@plain_command(example="adaptft download qwen-7b\nadaptft download Qwen/Qwen3-8B --hub modelscope")
@click.argument("model")
@click.option("--hub", type=click.Choice(["hf", "modelscope"]), help="Where hub ids are looked up; default: hf.")
@click.option("--revision", metavar="TEXT", help="Branch, tag or commit of a hub model.")
@click.option("--trust_remote_code", "--trust-remote-code", is_flag=True, help="Fetch the model's Python code too.")
def command(model: str, hub: Hub | None, revision: str | None, trust_remote_code: bool) -> None:
    """Fetch a model, so that the rest works offline.

    MODEL is an alias, a hub id or a GGUF file. Prints the folder that holds it.
    """
    from adaptft.models import locate, read_config
    from adaptft.shapes import model_shape
    from adaptft.units import format_bytes, format_count

    found = locate(model, hub=hub, revision=revision, trust_remote_code=trust_remote_code, allow_quantized=True)
    code = found.path if trust_remote_code else None
    shape = model_shape(read_config(str(found.path)), model, remote_code=code)
    size = sum(file.stat().st_size for file in found.path.glob("*.safetensors"))
    stored = shape.quantization or shape.stored_dtype
    click.echo(
        f"{shape.architecture}, {format_count(shape.num_parameters)} parameters, {stored}, {format_bytes(size)}",
        err=True,
    )
    click.echo(found.path)
