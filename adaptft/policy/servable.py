"""Which GPUs can serve a format, and what to take where they cannot."""

from __future__ import annotations

from typing import Literal

from adaptft.errors import ExportError, RequestError
from adaptft.facts import Gpu, Machine, ModelShape
from adaptft.policy.assumed import machine_with
from adaptft.policy.format_table import FORMATS, SLOW_ON_CPU, ComputeCapability, FormatFacts
from adaptft.requests import ExportFormat, ExportRequest

Verdict = Literal["native", "weight-only", "none"]

# oldest GPU -> formats to take there, best first: eight-bit arithmetic where there is some, then four-bit weights
_BEST: tuple[tuple[ComputeCapability, tuple[ExportFormat, ...]], ...] = (
    ((8, 9), ("fp8", "awq")),
    ((7, 5), ("int8", "awq")),
    ((0, 0), ("merged",)),
)


def verdict(facts: FormatFacts, capability: ComputeCapability | None) -> Verdict:
    """How a GPU serves a format; one of unknown capability is trusted to."""
    if capability is None or facts.minimum is None:
        return "native"
    if facts.refused_from is not None and capability >= facts.refused_from:
        return "none"
    if capability >= facts.minimum:
        return "native"
    weight_only = facts.weight_only_minimum is not None and capability >= facts.weight_only_minimum
    return "weight-only" if weight_only else "none"


def better_formats(model: ModelShape, capability: ComputeCapability) -> tuple[ExportFormat, ...]:
    """Formats that a GPU of ``capability`` serves natively, best first."""
    best = next(formats for since, formats in _BEST if capability >= since)
    return tuple(format for format in best if model.moe is None or FORMATS[format].takes_experts)


def serving_machine(request: ExportRequest, named: Machine | None) -> Machine | None:
    """The machine that is to serve, where the request names one: a recorded one, or ``--for-gpu``.

    Raises:
        RequestError: there is no such GPU, or two machines are named.
    """
    if request.for_gpu is None:
        return named
    if named is not None:
        raise RequestError("--for-gpu and --machine both name what serves.", fix="Leave one of them out.")
    return machine_with(request.for_gpu)


def check_target(request: ExportRequest, model: ModelShape, target: Machine | None) -> None:
    """Refuse a format that the machine that was named to serve it cannot serve.

    Raises:
        ExportError: no kernel; the fix names a format that has one.
    """
    facts = FORMATS[request.format]
    for gpu in target.gpus if target else ():
        if verdict(facts, gpu.compute_capability) == "none":
            raise ExportError(
                f"No kernel serves {request.format} on {_describe(gpu)}: it is for {facts.servable_on}.",
                fix=f"Use --format {_better(model, gpu)}.",
            )


def serving_warnings(request: ExportRequest, model: ModelShape, machine: Machine) -> tuple[str, ...]:
    """What the GPUs of the machine that serves can do with the result, where that is not everything."""
    facts, warnings = FORMATS[request.format], []
    if not machine.gpus and request.format.startswith("fp8"):
        warnings.append(SLOW_ON_CPU)
    for gpu in {gpu.name: gpu for gpu in machine.gpus}.values():
        found = verdict(facts, gpu.compute_capability)
        if found == "weight-only":
            warnings.append(
                f"{_describe(gpu)} serves this as weight-only: half the memory, 16-bit arithmetic. "
                f"Better there: --format {_better(model, gpu)}."
            )
        elif found == "none":
            warnings.append(
                f"{_describe(gpu)} cannot serve this format: it is for {facts.servable_on}. "
                f"To serve it here: --format {_better(model, gpu)}."
            )
    return tuple(warnings)


def _better(model: ModelShape, gpu: Gpu) -> str:
    return " or ".join(better_formats(model, gpu.compute_capability or (0, 0)))


def _describe(gpu: Gpu) -> str:
    major, minor = gpu.compute_capability or (0, 0)
    return f"{gpu.name} (compute capability {major}.{minor})"
