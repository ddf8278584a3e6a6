"""adaptft bench."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click

from adaptft.cli.options import json_option, plain_command
from adaptft.errors import MachineError, MissingPackage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adaptft.facts import Gpu, Machine, ModelShape
    from adaptft.hardware.ceilings_file import Bench
    from adaptft.hardware.measuring import Measurement, Subject

EXAMPLE = "adaptft bench\nadaptft bench --model qwen-14b\nadaptft bench --device cpu --json"
MODELS = {"cuda": "qwen2.5-7b", "cpu": "qwen2.5-0.5b"}
"""Whose shapes are multiplied where no model is named."""


@plain_command(example=EXAMPLE)
@click.option("--model", metavar="NAME", help="Measure at the shapes of this model; default: qwen2.5-7b.")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="What to measure; default: the GPU, if there is one."
)
@json_option
def command(model: str | None, device: Literal["cuda", "cpu"] | None, as_json: bool) -> None:
    """Measure how fast this machine is, for plans that are made here.

    Matmuls at a model's shapes, copies, attention and the links between GPUs, in less than a minute. Plans for
    this machine then use what was measured in the place of a table's figures, and say so.
    """
    from datetime import date

    from adaptft import hardware
    from adaptft.cli.screens import progress_lines, show
    from adaptft.hardware.ceilings_file import Bench, keep
    from adaptft.hardware.measuring import measure
    from adaptft.records import dumps

    machine = hardware.probe()
    gpus = _gpus(machine, device)
    name = model or MODELS["cuda" if gpus else "cpu"]
    today = date.today().isoformat()
    with _memory_errors_explained():
        ceilings, measurements = measure(
            subject(_shape(name)),
            gpus,
            native_bf16=machine.cpu.has_native_bf16,
            source=f"measured here on {today} by adaptft bench",
            progress=progress_lines(),
        )
    bench = Bench(date=today, model=name, ceilings=ceilings, measurements=measurements)
    keep(machine, bench)
    if as_json:
        click.echo(dumps(bench), nl=False)
    else:
        show(render(bench, machine))


def _gpus(machine: Machine, device: Literal["cuda", "cpu"] | None) -> tuple[Gpu, ...]:
    """The GPUs to measure; none for the CPU.

    Raises:
        MachineError: cuda is asked for, and there is none.
        MissingPackage: torch cannot use the GPUs, or is not installed.
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingPackage("adaptft bench needs torch, which is not installed.", fix="pip install torch")
    if device == "cpu":
        return ()
    import torch

    if machine.gpus and torch.cuda.is_available():
        return machine.gpus
    if device == "cuda":
        why = "the installed torch cannot use it" if machine.gpus else "there is none"
        raise MachineError(f"A GPU is to be measured, and {why}.", fix="Measure the CPU with --device cpu.")
    return ()


@contextmanager
def _memory_errors_explained() -> Iterator[None]:
    """Raises ``MachineError`` where the GPU is too full to be measured."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as cause:
        raise MachineError(
            "The GPU has too little free memory to be measured.", fix="Free it, or measure at a smaller --model."
        ) from cause


def _shape(name: str) -> ModelShape:
    from adaptft import models, shapes

    return shapes.model_shape(models.read_config(name), name)


def subject(model: ModelShape) -> Subject:
    """The matmuls of a model's layers, each form once, and its attention."""
    from adaptft.hardware.measuring import Subject

    forms = {(row.in_features, row.out_features) for row in model.linears if row.kind in ("attention", "mlp", "expert")}
    return Subject(matmuls=tuple(sorted(forms)), num_heads=model.num_attention_heads, head_dim=model.head_dim)


def render(bench: Bench, machine: Machine) -> RenderableType:
    """What was measured, and where it is kept."""
    from rich.console import Group
    from rich.text import Text

    from adaptft.cli.tables import pairs, remarks
    from adaptft.hardware.ceilings_file import bench_file, device_key

    rows = [(kind, _rate(rate, "FLOP/s") + " over all shapes") for kind, rate in bench.ceilings.matmul_flops.items()]
    rows += [(measurement.name, in_words(measurement)) for measurement in bench.measurements]
    notes = [f"Plans made here use these rates from now on. They are in {bench_file()}."]
    title = Text.assemble(
        ("Measured", "bold"), f": {device_key(machine, bench.ceilings.device)}; shapes of {bench.model}"
    )
    return Group(title, Text(), pairs(rows), Text(), remarks(notes))


def in_words(measurement: Measurement) -> str:
    """``731.2 TFLOP/s``, ``4.27 TB/s``, ``1 ms``."""
    from adaptft.units import format_seconds

    return format_seconds(measurement.value) if measurement.unit == "s" else _rate(measurement.value, measurement.unit)


def _rate(value: float, unit: str) -> str:
    size, letter = next(((size, letter) for size, letter in ((1e12, "T"), (1e9, "G")) if value >= size), (1e6, "M"))
    return f"{value / size:.3g} {letter}{unit}"
