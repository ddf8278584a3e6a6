"""Progress on the terminal: a bar where somebody watches, plain lines where the output goes to a file."""

from __future__ import annotations

import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adaptft.units import format_bytes, format_count, format_seconds

LINE_SECONDS = 5.0
"""A plain line is printed this often at most, and for the first and the last step."""


class ProgressReport(TrainerCallback):  # type: ignore[misc]
    """Steps, loss, tokens/s, memory and time left, on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._begin = self._last_line = 0.0
        self._first_step = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Open the bar."""
        self._begin, self._first_step = time.monotonic(), state.global_step
        if not (self._console.is_terminal and state.is_world_process_zero):
            return
        self._bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[numbers]}"),
            TextColumn("left"), TimeRemainingColumn(), console=self._console,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step, numbers="")
        self._bar.start()

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        """Show a step, or an evaluation."""
        if not state.is_world_process_zero or not logs:
            return
        if "eval_loss" in logs:
            self._console.print(f"step {state.global_step}: held-out loss {logs['eval_loss']:.4f}", highlight=False)
        elif "seconds" in logs:
            self._show_step(state, numbers(logs))

    def _show_step(self, state: TrainerState, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step, numbers=text)
            return
        now = time.monotonic()
        at_end = state.global_step in (self._first_step + 1, state.max_steps)
        if at_end or now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            line = f"step {state.global_step}/{state.max_steps}: {text}{self._left(state, now)}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def _left(self, state: TrainerState, now: float) -> str:
        """``, 1 min 5 s left``; nothing after the last step."""
        steps = state.max_steps - state.global_step
        done = max(state.global_step - self._first_step, 1)
        return f", {format_seconds((now - self._begin) / done * steps)} left" if steps > 0 else ""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Close the bar."""
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was; safe to call twice and after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def numbers(logs: dict[str, float]) -> str:
    """A step's log as words: ``loss 1.2345, 12.53 k tokens/s, 53.9 GiB``."""
    parts = [f"loss {logs['loss']:.4f}", f"{format_count(logs['tokens_per_second'])} tokens/s"]
    if torch.cuda.is_available():
        parts.append(format_bytes(torch.cuda.max_memory_allocated()))
    return ", ".join(parts)
