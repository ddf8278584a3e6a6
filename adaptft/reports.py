"""What happened: measured values, written beside the result as report.json."""

from __future__ import annotations

import math
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


IncidentKind = Literal[
    "out_of_memory", "not_a_number", "loss_spike", "rolled_back", "gone_on_with_changes", "not_fused"
]


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
    compiled_graphs: int = 0
    """Graphs that torch.compile made in this process; all decoder layers of one kind share one."""
    recompiled_graphs: int = 0
    """Those of them that were made after the first two steps, for a shape that had not been met before."""
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
class TaskScore:
    """One metric of one task of lm-evaluation-harness for one model."""

    model: str
    task: str
    metric: str
    value: float
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """Several models on the same rows, or (``tasks``) on tasks of lm-evaluation-harness."""

    dataset: tuple[str, ...]
    scores: tuple[ModelScore, ...]
    data: DataReport | None
    """None where only tasks were run."""
    notes: tuple[str, ...] = ()
    tasks: tuple[TaskScore, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How near a model is to its source, over the same trained tokens."""

    source_loss: float
    """Nats per trained token."""
    loss: float
    divergence: float
    """Mean KL(source || model) of the next-token distributions, in nats."""
    top1: float
    """Share of the tokens where both find the same one likeliest."""
    num_tokens: int

    @property
    def source_perplexity(self) -> float:
        """e to the source's loss; infinite where that overflows."""
        return perplexity(self.source_loss)

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that overflows."""
        return perplexity(self.loss)


def perplexity(loss: float) -> float:
    """e to a loss in nats; infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLine:
    """One thing that an export is held against; NaN passes nothing."""

    measure: str
    source: float | None
    """The same of the source, where there is such a thing."""
    export: float
    rule: Literal["at most", "at least", "exactly"]
    limit: float

    @property
    def passes(self) -> bool:
        """True where the export keeps the rule."""
        if self.rule == "at most":
            return self.export <= self.limit
        return self.export >= self.limit if self.rule == "at least" else self.export == self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """Greedy answers of the source and of its export to one prompt."""

    prompt: str
    source: str
    export: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The export beside the model it came from. ``was_accepted``: over a limit, and kept by --accept-loss."""

    fidelity: Fidelity
    lines: tuple[GateLine, ...]
    answers: tuple[AnswerPair, ...]
    rows: str
    """Which rows, in words; whether they were held out from training."""
    device: str
    was_accepted: bool = False

    @property
    def failures(self) -> tuple[str, ...]:
        """The measures over their limit."""
        return tuple(line.measure for line in self.lines if not line.passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """The merged model, not compressed yet, beside the running one: adapter unmerged, base as it was trained on."""

    base: Literal["original", "dequantised"]
    """The weights that the adapter was merged into; a QLoRA adapter has both as candidates."""
    parity: Fidelity
    rejected_parity: Fidelity | None = None
    """Of the other candidate."""


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
    gate: GateReport
    merge: MergeReport | None
    """None where there was no adapter."""
    calibration: str
    seconds: float
    predicted_seconds: float | None = None
    peak_host_bytes: int | None = None
    """Largest memory of the process's own, mapped files apart; None where the system does not tell."""
    predicted_host_bytes: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
