"""What commands print: the plan page. Everything reads without colour, and at 80 columns."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from adaptft.cli.tables import pairs, remarks
from adaptft.cli.words import dataset_words, decision_words, device_words, machine_words, model_words
from adaptft.plans import Decision, MemoryEstimate, Rejected, TrainPlan
from adaptft.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from adaptft.data import TokenizedData

SILENCE_SECONDS = 2.0
BAR_WIDTH = 28
MAX_WIDTH = 120
WORTH_A_WORD = 0.01
"""Share of a step that is worth naming."""
PARTS = ("weights", "adapters", "gradients", "optimizer", "activations", "logits", "workspace", "framework")


def console(*, stderr: bool = False) -> Console:
    """The console that commands print on: at most 120 columns wide, colours only on a terminal."""
    return Console(stderr=stderr, highlight=False, width=min(Console().width, MAX_WIDTH))


def show(renderable: RenderableType, *, stderr: bool = False) -> None:
    """Print on stdout or stderr; where that is a file or a pipe, without the blanks that fill lines up."""
    screen = console(stderr=stderr)
    if screen.is_terminal:
        screen.print(renderable, crop=False)  # the terminal wraps commands, and copies them whole
        return
    with screen.capture() as capture:
        screen.print(renderable, crop=False)
    stream = sys.stderr if stderr else sys.stdout
    stream.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def progress_lines() -> Callable[[str], None]:
    """Prints what is being done, a line each, on stderr as it is now: it is redirected while libraries work."""
    screen = Console(file=sys.stderr, highlight=False)
    return lambda words: screen.print(f"  {words} ...", soft_wrap=True)


@contextmanager
def sign_of_life(words: str) -> Iterator[None]:
    """Say what is being done where it takes longer than people wait without wondering.

    To a terminal alone: in files and pipes an error is two lines, whatever the machine's speed.
    """
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(SILENCE_SECONDS, progress_lines(), [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def render_plan(plan: TrainPlan, notes: Iterable[str] = ()) -> RenderableType:
    """The plan as a page: inputs, decisions with their reasons, memory, speed, what was not taken."""
    sections: list[RenderableType] = [
        _title(plan), _summary(plan), _inputs(plan), _decisions(plan), _memory(plan.memory),
    ]  # fmt: skip
    tried = [rejected for rejected in plan.rejected if not rejected.is_way_out]
    ways = [rejected for rejected in plan.rejected if rejected.is_way_out]
    sections += [_options("Not taken" if plan.fits else "Tried", tried)] if tried else []
    sections += [_options("Ways out", ways)] if ways else []
    notes = tuple(notes)
    sections += [remarks(plan.warnings, mark="!")] if plan.warnings else []
    sections += [remarks(notes)] if notes else []
    return Group(*(Padding(section, (0, 0, 1, 0)) for section in sections))


def render_data(data: TokenizedData) -> RenderableType:
    """How the rows were understood, what was left out, and one of them with its loss mask."""
    from adaptft.data import report_lines, sample_text

    return Group(*map(Text, report_lines(data.report)), _Unwrapped(sample_text(data.sample)), Text())


class _Unwrapped:
    """Text of the data: wrapped for a terminal, and in files and pipes line by line as it is."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._text.copy()
        if not console.is_terminal:
            text.no_wrap, text.overflow = True, "ignore"
        yield text


def _title(plan: TrainPlan) -> Text:
    verdict = ("fits", "bold green") if plan.fits else ("does not fit", "bold red")
    method = plan.decisions.method.value.train_type
    return Text.assemble(("Training plan", "bold"), f": {plan.model.name}, {method}: ", verdict)


def _inputs(plan: TrainPlan) -> Table:
    return pairs(
        [
            ("Machine", machine_words(plan.machine, plan.decisions.placement.value.nodes)),
            ("Model", model_words(plan.model)),
            ("Data", dataset_words(plan.dataset)),
        ],
    )


def _decisions(plan: TrainPlan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), expand=True, show_edge=False)
    table.add_column("Decision", style="bold", no_wrap=True)
    table.add_column("Value", ratio=4, overflow="fold")
    table.add_column("By", no_wrap=True)
    table.add_column("Reason", ratio=6, overflow="fold")
    for field in dataclasses.fields(plan.decisions):
        decision: Decision[object] = getattr(plan.decisions, field.name)
        by = Text("user", "bold cyan") if decision.source == "user" else Text("policy", "dim")
        table.add_row(field.name, decision_words(decision.value), by, decision.reason)
    return table


def _memory(memory: MemoryEstimate) -> Group:
    needed, capacity = memory.needed_bytes, memory.capacity_bytes
    heading = Text.assemble(
        ("Memory", "bold"),
        f"  at the worst moment ({memory.moment}): ",
        (f"{format_bytes(needed)} of {format_bytes(capacity)}", "bold red" if needed > capacity else "bold"),
        _share(needed, capacity),
    )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    longest = max(capacity, needed, 1)
    for part in PARTS:
        size = getattr(memory, f"{part}_bytes")
        if size:
            table.add_row(part, format_bytes(size), Text(_bar(size / longest), "cyan"))
    if capacity > needed:
        free = round(BAR_WIDTH * (capacity - needed) / longest)
        table.add_row("free", format_bytes(capacity - needed), Text("░" * free, "dim"))
    return Group(heading, Padding(table, (0, 0, 0, 2)))


def _share(needed: int, capacity: int) -> str:
    if needed > 2 * capacity:
        return f", {needed / capacity:.0f} times as much" if capacity else ""
    return f", {needed / capacity:.0%}"


def _bar(share: float) -> str:
    """A bar of ``BAR_WIDTH`` cells for 1, drawn in eighths of a cell."""
    eighths = max(1, round(8 * BAR_WIDTH * share))
    return "█" * (eighths // 8) + ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8]


def _summary(plan: TrainPlan) -> Table:
    """What most people look for: what is done, what it needs, how fast it is, how long it takes and what it costs."""
    needed, capacity = plan.memory.needed_bytes, plan.memory.capacity_bytes
    memory = f"{format_bytes(needed)} of {format_bytes(capacity)}{_share(needed, capacity)}"
    rows = [("Decision", _in_short(plan)), ("Memory", memory)]
    if plan.fits:
        rows += [("Speed", _speed(plan)), ("Time", _time(plan)), ("Cost", _cost(plan))]
    return pairs(rows)


def _in_short(plan: TrainPlan) -> str:
    """``lora in bf16, base in nf4; 4 x 4 sequences of 1024 tokens a step; 2 GPUs; 3 of 28 layers checkpointed``."""
    decisions = plan.decisions
    method, precision, batch = decisions.method.value, decisions.precision.value, decisions.batch.value
    base = "" if method.base_storage == precision.compute else f", weights in {method.base_storage}"
    device = device_words(decisions.placement.value)
    layers = decisions.checkpointing.value
    recomputed = f"; {layers.layers} of {layers.of} layers checkpointed" if layers.layers else ""
    return (
        f"{method.train_type} in {precision.compute}{base}; micro-batch {batch.micro_batch_size}, "
        f"{counted(batch.global_batch_size, 'sequence')} a step on {device}{recomputed}"
    )


def _speed(plan: TrainPlan) -> str:
    if plan.speed is None:
        return "not predicted: the rates of this device are not known (adaptft bench measures them)"
    mfu = f", {plan.speed.mfu:.0%} of the peak" if plan.speed.mfu is not None else ""
    step = format_seconds(plan.speed.step_seconds)
    return f"{step} a step, {plan.speed.tokens_per_second:,.0f} tokens/s{mfu}{_communication(plan)} ({_basis(plan)})"


def _communication(plan: TrainPlan) -> str:
    """How much of a step GPUs wait for each other, and how much they exchange behind their arithmetic."""
    if plan.speed is None or not plan.speed.communication_seconds:
        return ""
    step = plan.speed.step_seconds
    hidden = (plan.speed.communication_seconds - plan.speed.waiting_seconds) / step
    behind = f", {hidden:.0%} more behind arithmetic" if hidden > WORTH_A_WORD else ""
    return f"; communication: {plan.speed.waiting_seconds / step:.1%} of the step{behind}"


def _basis(plan: TrainPlan) -> str:
    """What the speed was predicted from, where it is more than the table of GPUs."""
    found, on_cpu = plan.machine.ceilings, plan.decisions.placement.value.strategy == "cpu"
    used = found is not None and found.device == ("cpu" if on_cpu else "cuda")
    return f"predicted from rates {found.source}" if found and used else "predicted"


def _time(plan: TrainPlan) -> str:
    steps = counted(plan.decisions.schedule.value.max_steps, "step")
    return f"{format_seconds(plan.speed.total_seconds)} for {steps}" if plan.speed else f"{steps}, time not predicted"


def _cost(plan: TrainPlan) -> str:
    if plan.cost is None:
        return "not known: no price or no speed"
    price = f"${plan.cost.usd_per_gpu_hour:.2f} a GPU and hour ({plan.cost.price_source})"
    return f"${plan.cost.total_usd:.2f} at {price}"


def _options(heading: str, options: Iterable[Rejected]) -> Group:
    lines = [Text.assemble((option.option, "italic"), f": {option.reason}") for option in options]
    return Group(Text(heading, "bold"), *(Padding(line, (0, 0, 0, 2)) for line in lines))
