"""``adaptft plan --compare``: one job on several machines, as a table, as JSON, and as a page with a chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.cli.planning import Subject, plan_on
from adaptft.errors import AdaptftError, DoesNotFit, OutputError
from adaptft.facts import Machine
from adaptft.plans import SHARDED
from adaptft.policy.comparison import Limits, Option, Recommendation, choose, nearest
from adaptft.policy.prices import Prices, price_key
from adaptft.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("GPU", "fits", "plan", "samples/s", "epoch", "total", "memory", "cost")
MOST_ROWS, PLAN_WIDTH = 12, 12


def compare(
    machines: dict[str, Machine], subject: Subject, prices: Prices, *, all_gpus: bool = False
) -> tuple[Option, ...]:
    """The job on each machine; a wish that a machine cannot meet is its problem, not the comparison's.

    Args:
        all_gpus: leave out plans that let GPUs of their machine idle (a smaller machine is among the others).
    """
    options = [_option(name, machine, subject, prices) for name, machine in machines.items()]
    return tuple(option for option in options if not all_gpus or not option.num_idle_gpus)


def _option(name: str, machine: Machine, subject: Subject, prices: Prices) -> Option:
    try:
        plan = plan_on(machine, subject, prices).plan
    except AdaptftError as error:
        return Option(name=name, problem=error.problem)
    placement = plan.decisions.placement
    idle = machine.gpus and placement.value.strategy == "cpu" and subject.parsed.request.device != "cpu"
    return Option(name=name, plan=plan, problem=placement.reason if idle else "")


def plan_words(option: Option) -> str:
    """``lora in fp8, 2 x 8, 12 of 28 layers checkpointed``, or why there is none."""
    plan = option.plan
    if plan is None or option.problem:
        return option.problem
    if not plan.fits:
        lack = plan.memory.needed_bytes - plan.memory.capacity_bytes
        ways = [way.option for way in plan.rejected if way.is_way_out and not way.option.startswith("--gpu")]
        missing = f"{format_bytes(lack)} too much" if lack > 0 else "no memory to spare"
        return missing + (f"; {ways[0]} fits" if ways else "")
    decisions = plan.decisions
    method, batch, layers = decisions.method.value, decisions.batch.value, decisions.checkpointing.value
    base = "" if method.base_storage == decisions.precision.value.compute else f" on {method.base_storage}"
    sizes = [batch.micro_batch_size, batch.gradient_accumulation_steps, batch.data_parallel_size]
    cut = " x ".join(str(size) for size in sizes[:1] + [size for size in sizes[1:] if size > 1])
    states = "" if decisions.optimizer.value.name == "adamw" else f", {decisions.optimizer.value.name}"
    kept = f", {layers.layers}/{layers.of} checkpointed" if layers.layers else ""
    sharded = f", {placement.strategy}" if (placement := decisions.placement.value).strategy in SHARDED else ""
    sharded += f", {size} GPUs to a row" if (size := placement.sequence_parallel_size) > 1 else ""
    idle = f", on {option.num_gpus} of {option.num_gpus_there} GPUs" if option.num_idle_gpus else ""
    return f"{method.train_type} {decisions.precision.value.compute}{base}{states}{sharded}, batch {cut}{kept}{idle}"


def cells(option: Option) -> tuple[str, ...]:
    """A row of the table, in the order of ``HEADINGS``; a dash where nothing is known."""
    share = option.memory_share
    memory = "-" if option.plan is None or share is None or option.problem else (
        f"{format_bytes(option.plan.memory.needed_bytes)} ({share:.0%})"
    )  # fmt: skip
    timed = option.fits
    return (
        option.name,
        "yes" if option.fits else "no",
        plan_words(option),
        f"{option.samples_per_second:.1f}" if timed and option.samples_per_second else "-",
        format_seconds(option.epoch_seconds) if timed and option.epoch_seconds else "-",
        format_seconds(option.total_seconds) if timed and option.total_seconds else "-",
        memory,
        f"${option.usd:.2f}" if timed and option.usd is not None else "-",
    )


def assumptions(options: tuple[Option, ...], subject: Subject) -> tuple[str, ...]:
    """What the numbers stand on: the data, the prices and their dates, and notes of the request."""
    data = subject.dataset
    said = "assumed, since no rows were measured" if data.assumed else "measured"
    rows = f"Data ({said}): {data.num_rows} rows of {data.mean_row_tokens:.0f} tokens on average."
    dated = {
        price_key(plan.machine.gpus[0]): f"${plan.cost.usd_per_gpu_hour:.2f} a GPU and hour ({plan.cost.price_source})"
        for option in options
        if (plan := option.plan) and plan.cost
    }
    prices = [f"Price of {key}: {price}." for key, price in dated.items()]
    nodes = subject.parsed.request.nnodes or 1
    machines = (f"Each stands for {nodes} machines of its kind.",) if nodes > 1 else ()
    return (rows, *machines, *prices, *subject.parsed.notes, *subject.notes)


def worth_showing(options: tuple[Option, ...], limits: Limits) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    """All options where they are few; of many those within the limits, the best first, and a note on the rest."""
    if len(options) <= MOST_ROWS:
        return options, ()
    wished = sorted(filter(limits.keeps, options), key=lambda option: (option.usd or 0, option.total_seconds or 0))
    shown = (tuple(wished) or options)[:MOST_ROWS]
    return shown, (f"{len(options) - len(shown)} more options are not shown; --json has them all.",)


def _stacked(row: tuple[str, ...]) -> tuple[str, ...]:
    """Times one over the other, and memory over its share, so that all columns fit into 80 characters."""
    *first, epoch, total, memory, cost = row
    times = epoch if epoch == total else f"{epoch}\n{total}"
    return (*first, times, memory.replace(" (", "\n("), cost)


def render(
    options: tuple[Option, ...], advice: tuple[Recommendation, ...], notes: tuple[str, ...], subject: Subject
) -> RenderableType:
    """The terminal's page."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from adaptft.cli.tables import pairs, remarks

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in _stacked(HEADINGS):
        is_plan = heading == "plan"
        table.add_column(
            heading,
            justify="left" if is_plan or heading in HEADINGS[:2] else "right",
            min_width=PLAN_WIDTH if is_plan else None,
            no_wrap=not is_plan,
        )
    for option in options:
        table.add_row(*map(Text, _stacked(cells(option))), style=None if option.fits else "dim")
    title = Text(f"{subject.model.name}: {len(options)} machine{'s' * (len(options) != 1)} compared", "bold")
    parts: list[RenderableType] = [title, table]
    if advice:
        parts.append(pairs((r.word.capitalize(), f"{r.name} ({r.reason})") for r in advice))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in (*parts, remarks(notes))))


def as_json(
    options: tuple[Option, ...], advice: tuple[Recommendation, ...], notes: tuple[str, ...], limits: Limits
) -> str:
    """The same as JSON: numbers, not words."""
    chosen = choose(options, limits)
    found = {
        "options": [_record(option) for option in options],
        "recommendations": [{"for": r.word, "gpu": r.name, "reason": r.reason} for r in advice],
        "budget_usd": limits.budget_usd,
        "deadline_seconds": limits.deadline_seconds,
        "chosen": chosen.name if chosen else None,
        "notes": list(notes),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _record(option: Option) -> dict[str, Any]:
    plan = option.plan
    speed, cost = (plan.speed, plan.cost) if plan else (None, None)
    return {
        "gpu": option.name,
        "fits": option.fits,
        "num_gpus": option.num_gpus,
        "plan": plan_words(option),
        "samples_per_second": option.samples_per_second,
        "tokens_per_second": speed.tokens_per_second if speed else None,
        "epoch_seconds": option.epoch_seconds,
        "total_seconds": option.total_seconds,
        "peak_bytes": plan.memory.peak_bytes if plan else None,
        "needed_bytes": plan.memory.needed_bytes if plan else None,
        "capacity_bytes": plan.memory.capacity_bytes if plan else None,
        "memory_share": option.memory_share,
        "usd": option.usd,
        "usd_per_gpu_hour": cost.usd_per_gpu_hour if cost else None,
        "price_source": cost.price_source if cost else None,
        "ways_out": [f"{r.option} {r.reason}" for r in plan.rejected if r.is_way_out] if plan else [],
    }


def write_html(path: Path, text: str) -> None:
    """Write the page.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise OutputError(
            f"Cannot write {path}: {cause.strerror}.", fix="Name a file in a folder that is there."
        ) from cause


def refuse(options: tuple[Option, ...], limits: Limits) -> None:
    """Stop where no machine can do the job, or none within the limits.

    Raises:
        DoesNotFit: names the nearest option.
    """
    if not any(option.fits for option in options):
        reasons = "; ".join(f"{option.name}: {plan_words(option)}" for option in options[:4])
        raise DoesNotFit("The job fits none of these machines.", fix=f"{reasons}.")
    if choose(options, limits) is None:
        near = nearest(options, limits)
        numbers = "no option has a known price or speed"
        if near is not None and near.total_seconds is not None:
            cost = f", ${near.usd:.2f}" if near.usd is not None else ""
            numbers = f"{near.name} comes nearest: {format_seconds(near.total_seconds)}{cost}"
        raise DoesNotFit(
            f"No machine does this {limits.in_words}.", fix=f"{numbers[0].upper()}{numbers[1:]}; or train fewer steps."
        )
