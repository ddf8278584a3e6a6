"""Several models on the same rows: what ``adaptft eval`` does."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from adaptft import data, quiet
from adaptft.errors import DataError, ModelError, RequestError
from adaptft.evaluation.scoring import score
from adaptft.evaluation.subjects import Subject, find_subjects, recorded_system
from adaptft.evaluation.tasks import harness
from adaptft.facts import Machine
from adaptft.models import load_for_inference, load_tokenizer
from adaptft.plans import Dtype
from adaptft.policy.devices import Device, choose_device, inference_dtype
from adaptft.reports import EvalReport, ModelScore, TaskScore
from adaptft.requests import EvalRequest

Progress = Callable[[str], None]


def evaluate(request: EvalRequest, machine: Machine, *, progress: Progress = lambda _: None) -> EvalReport:
    """Score every model of ``request`` on the same tokenised rows, one model in memory at a time.

    Args:
        progress: is told in words what is being done.

    Raises:
        ModelError: a model is not found, does not load, or has another tokenizer than the first.
        DataError: the rows cannot be read, or none is left.
        MachineError: a GPU was asked for and there is none.
    """
    device = choose_device(machine, request.device).value
    dtype = inference_dtype(machine, device).value
    subjects = find_subjects(request)
    if request.tasks:
        return _run_tasks(request, subjects, device, dtype, progress)
    tokenizer = load_tokenizer(subjects[0].path, trust_remote_code=request.trust_remote_code)
    _check_tokenizers(subjects, tokenizer)
    progress("reading the rows")
    rows, report, notes = _rows(request, subjects, tokenizer)
    scores = []
    for subject in subjects:
        progress(f"scoring {subject.name} on {len(rows)} rows ({device}, {dtype})")
        scores.append(_score(subject, rows, request, device, dtype))
    return EvalReport(dataset=_sources(request), scores=tuple(scores), data=report, notes=notes)


def _run_tasks(
    request: EvalRequest, subjects: tuple[Subject, ...], device: Device, dtype: Dtype, progress: Progress
) -> EvalReport:
    """All tasks for each subject, one model in memory at a time, with its own chat template."""
    if request.dataset:
        raise RequestError(
            "--tasks brings its own rows, so --dataset has no place beside it.",
            fix="Leave one of them out; rows for a task: --tasks NAME=FILE.",
        )
    found: list[TaskScore] = []
    trust, batch_size = request.trust_remote_code, request.per_device_eval_batch_size
    with harness(
        request.tasks, num_fewshot=request.num_fewshot, limit=request.max_rows, batch_size=batch_size,
        system=request.system if request.system is not None else recorded_system(subjects),
    ) as ready:  # fmt: skip
        for subject in subjects:
            progress(f"running {', '.join(wish.name for wish in ready.wishes)} on {subject.name} ({device}, {dtype})")
            tokenizer = load_tokenizer(subject.tokenizer_folder, trust_remote_code=trust)
            with loaded(subject.path, subject.adapters, device=device, dtype=dtype, trust_remote_code=trust) as model:
                found += ready.scores(model, tokenizer, subject.name)
    sources = tuple(str(wish.data) if wish.data else wish.name for wish in ready.wishes)
    return EvalReport(dataset=sources, scores=(), data=None, tasks=tuple(found))


@contextmanager
def loaded(
    path: Path, adapters: Path | None = None, *, device: Device, dtype: Dtype, trust_remote_code: bool = False
) -> Iterator[Any]:
    """The model in ``path``, in memory for the block alone.

    Raises:
        ModelError: it does not load.
    """
    model, _ = load_for_inference(
        path, adapters=adapters, device=device, dtype=dtype, trust_remote_code=trust_remote_code
    )
    try:
        with quiet.no_bars():
            yield model
    finally:
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _score(subject: Subject, rows: Dataset, request: EvalRequest, device: Device, dtype: Dtype) -> ModelScore:
    start = time.perf_counter()
    trust = request.trust_remote_code
    with loaded(subject.path, subject.adapters, device=device, dtype=dtype, trust_remote_code=trust) as model:
        result = score(model, rows, batch_size=request.per_device_eval_batch_size)
    return ModelScore(
        name=subject.name,
        path=str(subject.shown_path),
        loss=result.loss,
        perplexity=result.perplexity,
        num_rows=len(rows),
        num_tokens=result.num_tokens,
        seconds=time.perf_counter() - start,
    )


def _rows(request: EvalRequest, subjects: tuple[Subject, ...], tokenizer: Any) -> tuple[Dataset, Any, tuple[str, ...]]:
    """The rows, the data's report, and notes on what was left out or filled in."""
    notes = []
    system = request.system
    if system is None and (system := recorded_system(subjects)) is not None:
        notes.append(f"Rows without a system prompt get the one of the training: {system!r}.")
    settings = data.DataSettings(
        sources=_sources(request), hub=request.hub, columns=request.columns if request.dataset else None, system=system
    )
    tokenized = data.tokenize(settings, tokenizer)
    rows: Dataset = tokenized.rows
    if request.max_length is not None:
        rows, left_out = data.fit_rows(rows, request.max_length, "delete", can_cut=False)
        notes += left_out
    if request.max_rows is not None and request.max_rows < len(rows):
        notes.append(f"The first {request.max_rows} of {len(rows)} rows were used (--max_rows).")
        rows = rows.select(range(request.max_rows))
    if not len(rows):
        raise DataError(
            f"No row of {', '.join(_sources(request))} is left to evaluate.",
            fix="Raise --max_length, or give other rows with --dataset.",
        )
    return rows, tokenized.report, tuple(notes)


def _sources(request: EvalRequest) -> tuple[str, ...]:
    return request.dataset or (str(data.builtin("test")),)


def _check_tokenizers(subjects: tuple[Subject, ...], tokenizer: Any) -> None:
    """Losses per token can only be compared where the tokens are the same."""
    vocabulary = tokenizer.get_vocab()
    for subject in subjects[1:]:
        if subject.adapters is None and load_tokenizer(subject.path).get_vocab() != vocabulary:
            raise ModelError(
                f"{subject.name} has another tokenizer than {subjects[0].name}: their losses cannot be compared.",
                fix="Evaluate it in a call of its own.",
            )
