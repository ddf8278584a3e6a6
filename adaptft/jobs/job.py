"""What every scheduler is told of a plan, and the command that each machine runs."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from adaptft import __version__
from adaptft.artifacts import FILE_NAME
from adaptft.parsing.fields import option_fields
from adaptft.plans import TrainPlan
from adaptft.requests import TrainRequest
from adaptft.units import format_bytes, format_seconds

OF_THE_SCHEDULER = ("nnodes", "node_rank", "master_addr", "master_port", "max_restarts")
"""Options that the job file fills in, where the machines are known."""
HEAD_WIDTH = 110
TIME_FACTOR, TIME_ROOM_SECONDS = 1.5, 1800
"""A time limit is so many times the prediction, and room for downloads, reading and compiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan as a scheduler sees it."""

    name: str
    """Lower case letters, digits and ``-``: what Kubernetes allows."""
    nodes: int
    gpus_per_node: int
    words: tuple[str, ...]
    """``adaptft train`` with every option that was set, and without those of the place where it runs."""
    output_dir: str
    limit_seconds: int | None
    """None where speed or data are not known."""
    summary: tuple[str, ...]

    @property
    def finished_file(self) -> str:
        """The file that is there once the result is whole."""
        return str(PurePosixPath(self.output_dir) / FILE_NAME)


def job_of(plan: TrainPlan, *, folder: str = "output") -> Job:
    """The job that carries ``plan`` out, again and again until its result is whole.

    Args:
        folder: holds the result, in a folder named for the job, where the request does not say; a job that starts again
            finds it again.
    """
    placement = plan.decisions.placement.value
    name = _name(plan)
    output_dir = plan.request.output_dir or f"{folder}/{name}"
    request = replace(
        plan.request, output_dir=output_dir,
        resume_from_checkpoint=plan.request.resume_from_checkpoint or "auto",
    )  # fmt: skip
    return Job(
        name=name,
        nodes=placement.nodes,
        gpus_per_node=len(placement.gpu_indices),
        words=("adaptft", "train", *option_words(request)),
        output_dir=output_dir,
        limit_seconds=None if plan.speed is None or plan.dataset.assumed else _limit(plan.speed.total_seconds),
        summary=_summary(plan),
    )


def option_words(request: TrainRequest) -> tuple[str, ...]:
    """The options that say ``request`` on whichever machine, as the command line reads them; defaults are left out.

    What a user set to the default counts as set all the same, so it is written.
    """
    found: list[str] = []
    for name, field in option_fields(TrainRequest).items():
        value = getattr(request, name)
        is_default = value == (None if field.required else field.default)
        unset = value is None or (is_default and (value == () or name not in request.given))
        if unset or name in OF_THE_SCHEDULER:
            continue
        found += [f"--{name}", *_words(value)]
    return tuple(found)


def _words(value: Any) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, tuple):
        return [str(item) for item in value] or ["none"]
    return [str(value)]


def head(job: Job) -> str:
    """The plan in short, as comments of a shell script, of YAML and of Python."""
    lines = (part for line in job.summary for part in textwrap.wrap(line, HEAD_WIDTH, subsequent_indent="  "))
    return "".join(f"# {line}\n" for line in lines)


def script_lines(words: tuple[str, ...]) -> tuple[str, ...]:
    """``words`` as lines of a shell script, one option each, the values quoted."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return tuple(shlex.join(line) for line in lines if line)


def _name(plan: TrainPlan) -> str:
    model = plan.request.model.rstrip("/").split("/")[-1].removesuffix(".gguf").lower()
    words = re.sub(r"[^a-z0-9]+", "-", f"{model}-{plan.decisions.method.value.train_type}").strip("-")
    return words[-50:].strip("-") if words[0].isalpha() else f"train-{words}"[:50].strip("-")


def _limit(seconds: float) -> int:
    """In whole ten minutes."""
    return -(-int(seconds * TIME_FACTOR + TIME_ROOM_SECONDS) // 600) * 600


def _summary(plan: TrainPlan) -> tuple[str, ...]:
    """The plan in a few lines, for the head of a file."""
    placement, batch = plan.decisions.placement, plan.decisions.batch.value
    gpus = {gpu.index: gpu.name for gpu in plan.machine.gpus}
    each = f"{len(placement.value.gpu_indices)} x {gpus[placement.value.gpu_indices[0]]}" if gpus else "its CPU"
    machines = f"{placement.value.nodes} machines, each with {each}" if placement.value.nodes > 1 else each
    memory = f"{format_bytes(plan.memory.needed_bytes)} of {format_bytes(plan.memory.capacity_bytes)} a device"
    speed = "Speed: not predicted."
    if plan.speed is not None:
        time = format_seconds(plan.speed.total_seconds)
        speed = f"Speed: {plan.speed.tokens_per_second:,.0f} tokens/s, {time} in all (predicted)."
    return (
        f"{plan.model.name}, {plan.decisions.method.value.train_type}, on {machines}.",
        f"Placement: {placement.value.strategy}: {placement.reason}.",
        f"Batch: {batch.micro_batch_size} x {batch.gradient_accumulation_steps} accumulated x "
        f"{batch.data_parallel_size} ranks = {batch.global_batch_size} sequences of {batch.max_length} tokens a step.",
        f"Memory: {memory}.",
        speed,
        f"Written by adaptft {__version__}; the run plans again where it runs, from the same options.",
    )
