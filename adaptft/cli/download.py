"""``adaptft download``: bring a model to this machine."""

from __future__ import annotations

import click

from adaptft.requests import Hub


@click.command()
@click.argument("model")
@click.option("--hub", type=click.Choice(["hf", "modelscope"]), help="Where hub ids are looked up; default: hf.")
@click.option("--revision", help="Branch, tag or commit of a hub model.")
@click.option("--trust_remote_code", "--trust-remote-code", is_flag=True, help="Bring the model's Python code too.")
def download(model: str, hub: Hub | None, revision: str | None, trust_remote_code: bool) -> None:
    """Bring MODEL (alias, hub id or GGUF file) here and print its folder.

    \b
    Example:
      adaptft download qwen-7b
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
