"""What the numbers of each step say: go on, skip, go back with a lower learning rate, or stop with the likely cause.

A step whose loss or gradient is no number changes nothing (``guarding`` sees to that); here is counted and decided.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from adaptft.errors import TrainingError
from adaptft.training.incidents import Journal

MOST_BAD_STEPS = 3
"""Steps in a row whose numbers are none before the run goes back."""
MOST_ROLLBACKS = 2
RATE_STEP = 0.25
"""What the learning rate is multiplied by each time the run goes back."""
MOST_OVERFLOWS = 24
"""FP16 steps skipped in a row: the loss scaler, which halves from 65,536, has long been below 1 then."""
STILL_STEPS = 3
"""Steps in a row without any gradient after which a run is dead."""
SPIKE_WINDOW, SPIKE_STEPS = 32, 8
SPIKE_DEVIATIONS, SPIKE_FACTOR = 8.0, 1.5
"""A spike is so many (robust) standard deviations above the median of the last steps, and so many times it."""
MAD_TO_DEVIATION = 1.4826
"""Of a normal distribution, median absolute deviation to standard deviation."""


class RollBack(TrainingError):
    """The run should go back to a state from before ``good_step`` with ``rate_factor`` times the learning rate.

    Where nobody goes back, it is the diagnosis the run stops with.
    """

    def __init__(self, problem: str, *, fix: str, good_step: int) -> None:
        super().__init__(problem, fix=fix)
        self.good_step = good_step


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """What is known of a step once it is done."""

    step: int
    loss: float
    gradient_norm: float | None
    learning_rate: float
    was_skipped_by_scaler: bool = False

    @property
    def fault(self) -> str | None:
        """Which number is none, in words; an FP16 overflow that the scaler skipped is no fault."""
        if not math.isfinite(self.loss):
            return f"The loss of step {self.step} is {self.loss}"
        norm = self.gradient_norm
        if norm is not None and not math.isfinite(norm) and not self.was_skipped_by_scaler:
            return f"The gradient of step {self.step} is {norm} while its loss is {self.loss:.4f}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the model tells of why its numbers are none."""

    broken_weight: str | None = None
    """Name of a weight that is no number."""
    good_rows_are_bad: bool = False
    """True where rows of the last good step give no number with the weights of now."""


@dataclass(slots=True)
class NumberWatch:
    """Looks at one step after the other; its memory is of this process alone."""

    journal: Journal
    is_fp16: bool = False
    bad_streak: int = 0
    _first_fault: str = ""
    _last_good: int | None = None
    _overflows: int = 0
    _still: int = 0
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))

    def look(self, now: StepNumbers, *, saved: str = "", evidence: Callable[[], Evidence] = lambda: Evidence()) -> None:
        """Take the next step's numbers.

        Args:
            saved: where the rows of a bad step were written.
            evidence: looks for what tells the cause; called when the run cannot go on as it is.

        Raises:
            RollBack: too many bad steps in a row.
            TrainingError: nothing is trained at all.
        """
        if now.fault is not None:
            self._bad(now, now.fault, saved, evidence)
            return
        self.bad_streak = 0
        if now.was_skipped_by_scaler:
            self._overflow(now)
            return
        self._overflows = 0
        self._dead(now)
        self._spike(now)
        self._last_good = now.step
        self._losses.append(now.loss)

    def _bad(self, now: StepNumbers, fault: str, saved: str, evidence: Callable[[], Evidence]) -> None:
        self.bad_streak += 1
        if self.bad_streak == 1:
            self._first_fault = fault
        where = f" Its rows are in {saved}." if saved else ""
        self.journal.add("not_a_number", now.step, f"{fault}: the step is skipped.{where}")
        if self.bad_streak < MOST_BAD_STEPS:
            return
        cause, fix = self._diagnosis(now, saved, evidence())
        problem = f"{self._first_fault}, and so are {self.bad_streak} steps in a row. {cause}"
        if self._last_good is None and self.journal.state.rollbacks == 0:
            raise TrainingError(problem, fix=fix)  # nothing was learned yet that a lower rate could spare
        raise RollBack(problem, fix=fix, good_step=self._last_good or 0)

    def _diagnosis(self, now: StepNumbers, saved: str, evidence: Evidence) -> tuple[str, str]:
        """The likely cause and its cure: learning rate, precision or data."""
        if evidence.broken_weight and self._last_good is None:
            return (
                f"The model came with a weight that is no number: {evidence.broken_weight}.",
                "Download or merge the model again.",
            )
        if self.is_fp16:
            return (
                "Likely cause: precision, float16 reaches only to 65,504.",
                "Use --torch_dtype bfloat16 where the GPU has it, or float32.",
            )
        if evidence.good_rows_are_bad:
            return (
                f"Likely cause: the learning rate, {now.learning_rate:g} in this step: rows that gave numbers before "
                "give none with the weights of now.",
                f"Use --learning_rate {now.learning_rate / 4:.1g}, or a longer --warmup_ratio.",
            )
        rows = f"Look at the rows in {saved}" if saved else "Look at the rows of these steps"
        return (
            "Likely cause: the data; rows of the last good step still give numbers.",
            f"{rows}, and leave broken ones out.",
        )

    def _overflow(self, now: StepNumbers) -> None:
        self._overflows += 1
        self.journal.change(overflows=self.journal.state.overflows + 1)
        if self._overflows >= MOST_OVERFLOWS:
            raise TrainingError(
                f"{self._overflows} steps in a row up to step {now.step} overflowed in float16 at any loss scale.",
                fix="Use --torch_dtype bfloat16 where the GPU has it, or float32.",
            )

    def _dead(self, now: StepNumbers) -> None:
        if now.step == 1 and now.loss == 0.0:
            raise TrainingError(
                "The loss of the first step is exactly 0: nothing in its rows is trained.",
                fix="Look at the printed sample and its loss mask; check the answers' column, or use "
                "--train_on_prompt.",
            )
        self._still = self._still + 1 if now.gradient_norm == 0.0 else 0
        if self._still >= STILL_STEPS:
            raise TrainingError(
                f"{self._still} steps up to step {now.step} had no gradient at all: nothing is learned.",
                fix="Check that the rows' answers are in the loss (the printed sample shows it), and target_modules.",
            )

    def _spike(self, now: StepNumbers) -> None:
        if len(self._losses) < SPIKE_STEPS:
            return
        middle = median(self._losses)
        deviation = MAD_TO_DEVIATION * median(abs(loss - middle) for loss in self._losses)
        if now.loss > middle + SPIKE_DEVIATIONS * deviation and now.loss > SPIKE_FACTOR * middle:
            self.journal.add(
                "loss_spike", now.step, f"The loss jumped to {now.loss:.4f} from about {middle:.4f} of the last steps."
            )


def require_learning_rate(learning_rate: float) -> None:
    """Refuse a run in which nothing is learned.

    Raises:
        TrainingError: the learning rate is zero.
    """
    if learning_rate == 0:
        raise TrainingError(
            "The learning rate is 0: nothing would be learned.", fix="Use --learning_rate 1e-4, or leave it out."
        )
