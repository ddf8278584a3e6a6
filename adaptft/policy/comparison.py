"""One job on several machines: which is cheapest, which is fastest, and which keeps a budget and a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adaptft.plans import TrainPlan
from adaptft.policy.schedules import num_sequences
from adaptft.units import format_seconds

DAY_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A machine by the name it was asked for, with the plan for it; ``problem`` says why there is none."""

    name: str
    plan: TrainPlan | None = None
    problem: str = ""

    @property
    def fits(self) -> bool:
        """True where the job can be done there."""
        return self.plan is not None and self.plan.fits and not self.problem

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses."""
        return self.plan.decisions.placement.value.num_gpus if self.plan else 0

    @property
    def num_idle_gpus(self) -> int:
        """GPUs of the machines that the plan leaves alone."""
        return self.num_gpus_there - self.num_gpus if self.fits and self.plan else 0

    @property
    def num_gpus_there(self) -> int:
        """GPUs of all machines."""
        return len(self.plan.machine.gpus) * self.plan.decisions.placement.value.nodes if self.plan else 0

    @property
    def epoch_seconds(self) -> float | None:
        """Predicted time of one pass over the training rows."""
        if self.plan is None or self.plan.speed is None:
            return None
        batch, held_out = self.plan.decisions.batch.value, self.plan.decisions.schedule.value.held_out_ratio
        sequences = num_sequences(self.plan.dataset, held_out, batch.max_length, batch.packing)
        return sequences / batch.global_batch_size * self.plan.speed.step_seconds

    @property
    def samples_per_second(self) -> float | None:
        """Rows of the data a second, over all GPUs."""
        if self.plan is None or not self.epoch_seconds:
            return None
        return self.plan.dataset.num_rows * (1 - self.plan.decisions.schedule.value.held_out_ratio) / self.epoch_seconds

    @property
    def total_seconds(self) -> float | None:
        """Predicted time of the whole run."""
        return self.plan.speed.total_seconds if self.plan and self.plan.speed else None

    @property
    def memory_share(self) -> float | None:
        """What the plan needs of the memory that is free."""
        return self.plan.memory.needed_bytes / self.plan.memory.capacity_bytes if self.plan else None

    @property
    def usd(self) -> float | None:
        """Predicted cost of the whole run; None where nobody knows the price."""
        return self.plan.cost.total_usd if self.plan and self.plan.cost else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may cost and how long it may take; None is no limit."""

    budget_usd: float | None = None
    deadline_seconds: float | None = None

    @property
    def in_words(self) -> str:
        """``within $50.00 and 12 h 0 min``; empty without limits."""
        words = [] if self.budget_usd is None else [f"${self.budget_usd:.2f}"]
        words += [] if self.deadline_seconds is None else [format_seconds(self.deadline_seconds)]
        return f"within {' and '.join(words)}" if words else ""

    def keeps(self, option: Option) -> bool:
        """True where the option is known to stay within both."""
        dear = self.budget_usd is not None and (option.usd is None or option.usd > self.budget_usd)
        seconds = option.total_seconds
        late = self.deadline_seconds is not None and (seconds is None or seconds > self.deadline_seconds)
        return option.fits and not dear and not late


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A word ("cheapest"), the option it is for, and the numbers behind it."""

    word: str
    name: str
    reason: str


def recommend(options: tuple[Option, ...], limits: Limits) -> tuple[Recommendation, ...]:
    """The option that the limits choose, the cheapest, the fastest, and the cheapest that takes no whole day."""
    return tuple(_recommendations([option for option in options if option.fits], limits))


def _recommendations(fitting: list[Option], limits: Limits) -> Iterator[Recommendation]:
    chosen = choose(tuple(fitting), limits)
    if chosen is not None and limits.in_words:
        wish = "fastest" if limits.deadline_seconds is None else "cheapest"
        yield Recommendation(word=f"{wish} {limits.in_words}", name=chosen.name, reason=_numbers(chosen))
    cheapest, fastest = _cheapest(fitting), _fastest(fitting)
    if cheapest is not None:
        yield Recommendation(word="cheapest", name=cheapest.name, reason=_numbers(cheapest))
    if fastest is not None:
        yield Recommendation(word="fastest", name=fastest.name, reason=_numbers(fastest))
    in_a_day = _cheapest([option for option in fitting if Limits(deadline_seconds=DAY_SECONDS).keeps(option)])
    if in_a_day is not None and in_a_day is not cheapest:
        yield Recommendation(word="cheapest under 24 h", name=in_a_day.name, reason=_numbers(in_a_day))


def choose(options: tuple[Option, ...], limits: Limits) -> Option | None:
    """Within a deadline the cheapest (the fastest, where no price is known), else the fastest; None where none is."""
    keeping = [option for option in options if limits.keeps(option)]
    if limits.deadline_seconds is not None:
        return _cheapest(keeping) or _fastest(keeping)
    return _fastest(keeping)


def nearest(options: tuple[Option, ...], limits: Limits) -> Option | None:
    """The option that misses the limits by the smallest factor, of those whose numbers are known."""

    def miss(option: Option) -> float:
        dear = (option.usd or 0) / limits.budget_usd if limits.budget_usd else 0
        late = (option.total_seconds or 0) / limits.deadline_seconds if limits.deadline_seconds else 0
        return max(dear, late)

    known = [
        option for option in options
        if option.fits and option.total_seconds is not None and (limits.budget_usd is None or option.usd is not None)
    ]  # fmt: skip
    return min(known, key=miss, default=None)


def _cheapest(options: list[Option]) -> Option | None:
    """Of equal cost the faster one."""
    priced = [option for option in options if option.usd is not None]
    return min(priced, key=lambda option: (round(option.usd or 0, 2), option.total_seconds or 0), default=None)


def _fastest(options: list[Option]) -> Option | None:
    timed = [option for option in options if option.total_seconds is not None]
    return min(timed, key=lambda option: option.total_seconds or 0, default=None)


def _numbers(option: Option) -> str:
    time = "" if option.total_seconds is None else format_seconds(option.total_seconds)
    return ", ".join(filter(None, [time, "" if option.usd is None else f"${option.usd:.2f}"]))
