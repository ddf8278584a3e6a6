"""What a run measures, without waiting for the GPU more often than a step.

The loss of a step is copied to the host behind the step's own work and read when the next step has been queued.
Step times are those between two marks on the device's own clock.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adaptft.reports import WARM_UP_STEPS, Comparison, StepMetrics


class Clock:
    """Marks in time on a device; ``seconds(a, b)`` between two of them, once both have passed."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        """A mark behind all work queued so far; returns at once."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Return when the device has passed ``mark``."""
        if self._on_gpu:
            mark.synchronize()

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two marks."""
        return float(begin.elapsed_time(end) / 1000 if self._on_gpu else end - begin)


def to_host(value: Any) -> Any:
    """A copy of ``value`` on the host, queued behind the device's work; read it after a later mark has passed.

    What is no tensor is there already.
    """
    if not torch.is_tensor(value):
        return value
    if value.device.type != "cuda":
        return value.detach().clone()
    target = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return target.copy_(value.detach(), non_blocking=True)


@dataclass(slots=True, kw_only=True)
class PendingStep:
    """A step whose numbers are still on their way to the host."""

    step: int
    epoch: float
    loss: Tensor
    gradient_norm: Tensor | float | None
    learning_rate: float
    num_tokens: Tensor | int
    begin: Any
    end: Any
    is_logged: bool
    stops: Tensor | int = 0
    """Ranks that were asked to stop when the step began."""
    was_skipped: bool = False
    window: list[dict[str, Any]] = field(default_factory=list)
    """The step's micro-batches, to be written down where its numbers are none."""


@dataclass(slots=True)
class Counters:
    """Running sums of a run."""

    input_wait_seconds: float = 0.0
    step_seconds: float = 0.0
    tokens_of_step: Tensor | int = 0
    stops_of_step: Tensor | int = 0
    is_stop_wished: bool = False
    saved_step: int | None = None
    first_step_seconds: float | None = None
    pending: list[PendingStep] = field(default_factory=list)
    good_window: list[dict[str, Any]] = field(default_factory=list)
    """The micro-batches of the last step whose numbers were sound."""

    def count(self, seconds: float, *, stops: int) -> None:
        """Add a step that is done."""
        self.step_seconds += seconds
        self.is_stop_wished |= stops > 0
        if self.first_step_seconds is None:
            self.first_step_seconds = seconds


def steps_from_history(history: list[dict[str, Any]]) -> tuple[StepMetrics, ...]:
    """All steps in a trainer state's history, those of earlier processes of a resumed run too."""
    return tuple(
        StepMetrics(
            step=entry["step"],
            loss=entry["loss"],
            learning_rate=entry["learning_rate"],
            gradient_norm=entry.get("grad_norm"),
            num_tokens=entry["num_tokens"],
            seconds=entry["seconds"],
        )
        for entry in history
        if "seconds" in entry and "loss" in entry
    )


def tokens_per_second(steps: tuple[StepMetrics, ...]) -> float:
    """Tokens over time of all steps but the warm-up ones (of all, where there are no others)."""
    counted = steps[WARM_UP_STEPS:] or steps
    seconds = sum(step.seconds for step in counted)
    return sum(step.num_tokens for step in counted) / seconds if seconds else 0.0


def median_step_seconds(steps: tuple[StepMetrics, ...]) -> float | None:
    """Median time of the steps after the warm-up; None where there are none."""
    counted = steps[WARM_UP_STEPS:] or steps
    return median(step.seconds for step in counted) if counted else None


def compare(predicted: float | None, measured: float | None) -> Comparison | None:
    """The measurement, where there is one, beside what was predicted of it."""
    return None if measured is None else Comparison(predicted=predicted or None, measured=measured)


class GraphCounter(TrainerCallback):  # type: ignore[misc]
    """How many graphs torch.compile makes from here on, the rehearsal's too, and how many of them late."""

    def __init__(self) -> None:
        self._counts = [_num_graphs()]
        """Dynamo's own count, which is the process's: at first, and after each step."""
        self._begin = 0
        """Where in them the last training began: one that goes back to a checkpoint compiles again."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A training begins; its rehearsal is over."""
        self._begin = len(self._counts) - 1

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count."""
        self._counts.append(_num_graphs())

    @property
    def total(self) -> int:
        """All that were made."""
        return self._counts[-1] - self._counts[0]

    @property
    def late(self) -> int:
        """Those made after the warm-up."""
        return self._counts[-1] - self._counts[: self._begin + WARM_UP_STEPS + 1][-1]


def _num_graphs() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")  # who compiles imports it; it takes seconds
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


class PeakMemory:
    """Peak memory of a run: allocated by torch on the GPU, from here on; on the CPU, by how much this process grew.

    Make it before the model on the GPU. On the CPU make it when the model stands: the code that comes with a model
    (100 MiB and more) is no part of a plan, so the model's own tensors are added to what comes after.
    """

    def __init__(self, *, on_gpu: bool, model_bytes: int = 0) -> None:
        self._on_gpu = on_gpu
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        else:
            importlib.import_module("torch._dynamo")  # the first optimizer step would

            _reset_peak_of_process()
        self._base = psutil.Process().memory_info().rss - model_bytes

    def measured_bytes(self) -> int:
        """The peak so far, in bytes."""
        if self._on_gpu:
            return torch.cuda.max_memory_allocated()
        return max(_peak_of_process() - self._base, 0)


def _reset_peak_of_process() -> None:
    """Forget earlier peaks, where the kernel lets a process do so (Linux); elsewhere they count."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_of_process() -> int:
    """Peak resident bytes: VmHWM, which can be reset, or what getrusage has seen since the process began."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
