"""What happened: measured values, written beside the result as report.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

WARM_UP_STEPS = 2
"""Steps left out of speeds: compilation, first allocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """Rows left out for one reason; ``first_lines`` counts from 1."""

    reason: str
    count: int
    source: str
    first_lines: tuple[int, ...]
    unit: Literal["line", "row"] = "row"
    """What the numbers count: lines of the file, or rows where these are not lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """How the data was read: the verdict on its form, accepted and rejected rows."""

    dialect: str
    """The form of the rows, in words: "alpaca (instruction, input, output)"."""
    num_accepted: int
    num_rejected: int
    rejected: tuple[RejectedRows, ...] = ()
    warnings: tuple[str, ...] = ()
    from_cache: bool = False
    in_the_loss: str = "the answers"
    """Which text is trained, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One optimizer step."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float | None
    num_tokens: int
    seconds: float


IncidentKind = Literal["out_of_memory", "not_a_number", "loss_spike", "rolled_back", "gone_on_with_changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that went wrong in a run, and what was done about it."""

    kind: IncidentKind
    step: int
    """The optimizer step in which it happened; 0 is before the first one."""
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A measurement, beside its prediction where there is one that means the same."""

    predicted: float | None
    measured: float

    @property
    def error(self) -> float | None:
        """Relative: +0.1 is a prediction 10 % too high; None without a prediction."""
        if self.predicted is None:
            return None
        return self.predicted / self.measured - 1 if self.measured else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A finished training run."""

    steps: tuple[StepMetrics, ...]
    initial_eval_loss: float | None
    final_eval_loss: float | None
    total_seconds: float
    """Of this process: reading, loading, evaluation and checkpoints too."""
    tokens_per_second: float
    """Tokens of documents (padding left out) in all steps but the first two, over their time."""
    num_tokens: int
    peak_memory: Comparison | None
    """Bytes: allocated by torch on the GPU, beside the plan's peak; on the CPU what the process grew
    by, the buffers of libraries included, which no plan knows."""
    step_seconds: Comparison | None
    first_step_seconds: float
    input_wait_share: float
    """Share of the steps' time spent waiting for data."""
    data: DataReport
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """What went wrong on the way and was mended, of earlier processes of a resumed run too; the first 100."""
    overflowed_steps: int = 0
    """Steps that the FP16 loss scaler skipped."""
    was_finished: bool = False
    """True where the run was to go on and had been finished before: nothing was done. Never so in report.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScore:
    """Loss (nats per trained token) and perplexity of one model on the evaluation rows."""

    name: str
    path: str
    loss: float
    perplexity: float
    num_rows: int
    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Several models on the same rows."""

    dataset: tuple[str, ...]
    scores: tuple[ModelScore, ...]
    data: DataReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """A finished export: proof of what was written, and how far it is from its source."""

    format: str
    path: str
    num_quantized_modules: int
    num_linear_modules: int
    bits_per_weight: float
    """Of the compressed layers, their scales and zero points counted."""
    source_bytes: int
    exported_bytes: int
    source_loss: float | None
    exported_loss: float | None
    checked_on: str
    """The rows that both losses are of; rows of the training data were not held out."""
    calibration: str
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
