"""From a request to a plan: what ``adaptft plan`` and ``adaptft train`` share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from adaptft.cli.estimates import estimate
from adaptft.errors import DoesNotFit
from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.parsing import Parsed
from adaptft.plans import TrainPlan
from adaptft.requests import TrainRequest
from adaptft.units import format_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from adaptft.data import TokenizedData
    from adaptft.policy.prices import Prices


BUILT_IN = "No --dataset: training on the built-in GSM8K rows (grade-school arithmetic), not on data of yours."


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, the data as it was read (None where it was not), what to say before all else, and notes for the user."""

    plan: TrainPlan
    data: TokenizedData | None
    notes: tuple[str, ...]
    first: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """All that a plan is made from but the machine: the request, the model, and the data as far as it is known."""

    parsed: Parsed[TrainRequest]
    model: ModelShape
    dataset: DatasetShape
    data: TokenizedData | None = None
    notes: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


def read_subject(parsed: Parsed[TrainRequest]) -> Subject:
    """What is to be trained, from what is on this machine; nothing is downloaded but a model's config.

    Where the model's tokenizer is not here the data is estimated from its size, and a note says so.

    Raises:
        AdaptftError: the model or the data cannot be read.
    """
    from adaptft.models.locating import unpacked_from

    parsed = _with_adapter(parsed)
    request = parsed.request
    model = read_shape(request)
    folder = _folder_here(request)
    if folder is None:
        data = estimate(sources(request), request.hub)
        notes = filter(None, (_when_measured(request.model), unpacked_from(request.model, request.hub)))
        return Subject(parsed=parsed, model=model, dataset=data, notes=tuple(notes))
    return _measured(parsed, model, folder)


def _measured(parsed: Parsed[TrainRequest], model: ModelShape, folder: Path) -> Subject:
    """The data read with the tokenizer in ``folder``; held-out data of its own is read too, and compared with it."""
    from adaptft import data
    from adaptft.cli.screens import sign_of_life
    from adaptft.models.locating import unpacked_from

    request = parsed.request
    with sign_of_life("reading and tokenising the data"):
        tokenized = read_data(request, folder, sources(request))
    first: tuple[str, ...] = ()
    if request.val_dataset:
        held_out = read_data(request, folder, request.val_dataset)
        first = data.overlap_warning(tokenized.rows, held_out.rows, request.val_dataset)
    notes = tuple(filter(None, [unpacked_from(request.model, request.hub)]))
    return Subject(parsed=parsed, model=model, dataset=tokenized.shape, data=tokenized, notes=notes, first=first)


def plan_run(parsed: Parsed[TrainRequest], machine_file: Path | None) -> Planned:
    """A plan for a run that follows: the model is fetched, the data read and measured.

    A model that is not here yet is first planned with estimated data, so that nobody downloads
    what cannot be trained.

    Raises:
        DoesNotFit: no plan fits the machine.
        AdaptftError: as ``plan_here``, and the model cannot be fetched.
    """
    from adaptft import models
    from adaptft.cli.screens import sign_of_life
    from adaptft.models.bases import check_base

    parsed = _with_adapter(parsed)
    request = parsed.request
    machine = find_machine(machine_file, request)
    model = read_shape(request)
    if _folder_here(request) is None:
        early = plan_on(machine, Subject(parsed=parsed, model=model, dataset=estimate(sources(request), request.hub)))
        if not early.plan.fits:
            return early
    with sign_of_life(f"getting {request.model} ready (a GGUF file is unpacked once)"):
        found = models.locate(
            request.model, hub=request.hub, revision=request.revision, trust_remote_code=request.trust_remote_code
        )
    if request.adapters is not None:
        check_base(Path(request.adapters), found)
    return plan_on(machine, _measured(parsed, model, found.path))


def _with_adapter(parsed: Parsed[TrainRequest]) -> Parsed[TrainRequest]:
    """What the adapter that a run begins with says of rank and targets is part of the request."""
    from adaptft.models.continuing import with_settings_of_adapter

    return replace(parsed, request=with_settings_of_adapter(parsed.request))


def render_planned(planned: Planned) -> RenderableType:
    """The data, where it was read, and the plan page."""
    from rich.console import Group
    from rich.padding import Padding

    from adaptft.cli.screens import render_data, render_plan
    from adaptft.cli.tables import remarks

    data = () if planned.data is None else (render_data(planned.data),)
    first = (Padding(remarks(planned.first, mark="!"), (0, 0, 1, 0)),) if planned.first else ()
    return Group(*first, *data, render_plan(planned.plan, planned.notes))


def refuse_unfit(plan: TrainPlan) -> None:
    """Stop where the plan does not fit.

    Raises:
        DoesNotFit: names the ways out with what they need, or how much the leanest plan lacks.
    """
    if plan.fits:
        return
    method = plan.decisions.method.value.train_type
    need, free = format_bytes(plan.memory.needed_bytes), format_bytes(plan.memory.capacity_bytes)
    ways = "; or ".join(f"{way.option} {way.reason}" for way in plan.rejected if way.is_way_out)
    raise DoesNotFit(
        f"{plan.model.name} with train_type {method} does not fit this machine: it needs {need}, {free} are free.",
        fix=f"{ways}."
        if ways
        else f"Take a smaller model: even the leanest plan needs {need}, on any GPU that is known.",
    )


def find_machine(machine_file: Path | None, request: TrainRequest) -> Machine:
    """The recorded machine, or this one with the disk that holds the output folder and what was measured on it."""
    from adaptft import hardware

    if machine_file is not None:
        return hardware.read_machine(machine_file)
    return hardware.with_ceilings(hardware.probe(Path(request.output_dir or ".")), request.device)


def read_shape(request: TrainRequest) -> ModelShape:
    """The model's shape from its config; no weights are read."""
    from adaptft import models, shapes

    config = models.read_config(request.model, hub=request.hub, revision=request.revision)
    return shapes.model_shape(config, request.model)


def read_data(request: TrainRequest, folder: Path, names: tuple[str, ...]) -> TokenizedData:
    """The rows of ``names``, tokenised with the tokenizer in ``folder``.

    Raises:
        DataError: see ``adaptft.data.tokenize``.
    """
    from adaptft import data, models

    return data.tokenize(data.training_settings(request, names), models.load_tokenizer(folder))


def sources(request: TrainRequest) -> tuple[str, ...]:
    """The data sets of the request, or the built-in one."""
    from adaptft import data

    return request.dataset or (str(data.builtin("train")),)


def _folder_here(request: TrainRequest) -> Path | None:
    """The folder with the model's tokenizer, where it is on this machine."""
    from adaptft.models.local import tokenizer_here

    return tokenizer_here(request.model, hub=request.hub, revision=request.revision)


def _when_measured(model: str) -> str:
    """When estimated data will be measured, for a model whose tokenizer is not here."""
    path = Path(model).expanduser()
    if path.is_dir():
        return f"The data is estimated from its size: {model} has no tokenizer to measure it with."
    if path.is_file():
        return "The data is estimated from its size; adaptft train converts the GGUF file and measures it."
    return f"The data is measured once the model is on this machine: adaptft download {model}"


def plan_on(machine: Machine, subject: Subject, prices: Prices | None = None) -> Planned:
    """A plan for ``machine``; ``prices`` are the table's, where none are given.

    Raises:
        AdaptftError: wishes that contradict each other or this machine, or data of which no row fits.
    """
    from adaptft import policy
    from adaptft.policy.prices import PRICES

    request, prices = subject.parsed.request, PRICES if prices is None else prices
    plan = policy.plan_training(machine, subject.model, subject.dataset, request, prices)
    notes, tokenized = subject.notes, subject.data
    if tokenized is not None:
        plan, tokenized, fitting = _without_rows_that_do_not_fit(plan, tokenized, prices)
        notes += fitting
    builtin = () if request.dataset else (BUILT_IN,)
    return Planned(plan=plan, data=tokenized, notes=(*subject.parsed.notes, *notes), first=(*builtin, *subject.first))


def _without_rows_that_do_not_fit(
    plan: TrainPlan, tokenized: TokenizedData, prices: Prices
) -> tuple[TrainPlan, TokenizedData, tuple[str, ...]]:
    """The plan for the rows that are left at its max_length, these rows, and what becomes of the others.

    Raises:
        DataError: none is left.
    """
    from adaptft import data, policy

    length = plan.decisions.batch.value.max_length
    fitted, notes = data.fit(tokenized, length, plan.request.truncation_strategy)
    if fitted.shape == tokenized.shape:
        return plan, fitted, notes
    return policy.plan_training(plan.machine, plan.model, fitted.shape, plan.request, prices), fitted, notes


def default_output_dir(plan: TrainPlan, now: datetime) -> Path:
    """``output/qwen-7b-qlora-20261130-150512``."""
    name = plan.request.model.rstrip("/").split("/")[-1].removesuffix(".gguf").lower()
    return Path("output") / f"{name}-{plan.decisions.method.value.train_type}-{now:%Y%m%d-%H%M%S}"
