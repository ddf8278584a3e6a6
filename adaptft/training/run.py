"""A whole run in this process: find, read, load, train, write."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils.memory import clear_device_cache

from adaptft import models
from adaptft.artifacts import FILE_NAME
from adaptft.errors import TrainingError
from adaptft.models.locating import unpacked_from
from adaptft.plans import TrainPlan
from adaptft.records import read_json
from adaptft.reports import RunReport
from adaptft.training import folders, interruption, metrics, numerics, ranks, recovery, results, resuming
from adaptft.training.adapters import tensor_bytes
from adaptft.training.agreement import require_same_beginning
from adaptft.training.arguments import training_arguments
from adaptft.training.assembly import build_trainer
from adaptft.training.checkpoints import read_seal
from adaptft.training.identification import identify
from adaptft.training.numbers import RollBack
from adaptft.training.progress import ProgressReport
from adaptft.training.resuming import Start
from adaptft.training.rows import TrainingRows, prepare_rows
from adaptft.training.sharding import whole_weights
from adaptft.units import format_count

if TYPE_CHECKING:
    from adaptft.training.trainer import SupervisedTrainer


def run(plan: TrainPlan, output_dir: Path) -> RunReport:
    """Carry ``plan`` out in this process, which may be one of several ranks; the folder has been looked at.

    Raises:
        AdaptftError: see ``adaptft.training.train``.
    """
    with interruption.watched(output_dir):
        return _run(plan, output_dir)


def refuse_other_run(plan: TrainPlan, start: Start) -> None:
    """Look before the plan is shown whether it goes on with the run that ``start`` is of; the model is here.

    Raises:
        RequestError: it does not; everything that differs is named.
    """
    base = _locate(plan)
    rows = prepare_rows(plan, models.load_tokenizer(base.path))
    resuming.accept(start, identify(plan, base.path, rows), plan.request, is_told=False)


def _locate(plan: TrainPlan) -> models.LocalModel:
    request = plan.request
    return models.locate(
        request.model, hub=request.hub, revision=request.revision, trust_remote_code=request.trust_remote_code
    )


def _run(plan: TrainPlan, output_dir: Path) -> RunReport:
    begin = time.monotonic()
    numerics.set_up(plan)
    ranks.require_possible(plan, on_gpu=plan.uses_gpu)
    start = resuming.starting_point(plan.request, output_dir)
    if start.checkpoint is not None:
        interruption.kept(start.checkpoint)
    request = plan.request
    base = _locate(plan)
    process = training_arguments(plan, output_dir, evaluates=False)
    with process.main_process_first(desc="tokenising"):
        rows = prepare_rows(plan, models.load_tokenizer(base.path))
    identity = identify(plan, base.path, rows)
    require_same_beginning(identity, start.checkpoint)
    journal = resuming.accept(start, identity, plan.request, is_told=process.should_save)
    if (finished := _finished(start.checkpoint, output_dir, identity.max_steps)) is not None:
        return finished
    memory = metrics.PeakMemory(on_gpu=True) if plan.uses_gpu else None
    unpacked, graphs = unpacked_from(request.model, request.hub), metrics.GraphCounter()
    notes = (*filter(None, [unpacked]), *start.notes, *rows.notes)
    with (
        _released_on_failure(process, output_dir),
        recovery.explained(plan, output_dir),
        closing(ProgressReport()) as progress,
    ):
        while True:
            trainer = build_trainer(plan, output_dir, base.path, rows, callbacks=[progress, graphs], journal=journal)
            memory = memory or metrics.PeakMemory(on_gpu=False, model_bytes=tensor_bytes(trainer.model))
            if process.should_save:
                folders.claim(plan, output_dir)
            try:
                _train(trainer, start)
                break
            except RollBack as cause:
                start = resuming.go_back(trainer, output_dir, cause)
            del trainer
            clear_device_cache(garbage_collection=True)
        notes = (*notes, *_notes(plan, trainer, start))
        report = make_report(plan, trainer, rows, memory, graphs, seconds=time.monotonic() - begin, notes=notes)
        weights = whole_weights(trainer.model) if trainer.is_fsdp_enabled else None
        if process.should_save:
            model = trainer.accelerator.unwrap_model(trainer.model)
            report = results.write_result(plan, report, model, base, output_dir, weights=weights)
    trainer.accelerator.wait_for_everyone()
    return report


def _train(trainer: SupervisedTrainer, start: Start) -> None:
    """Take all steps from ``start`` on.

    Raises:
        KeyboardInterrupt: a signal ended the run before its last step.
    """
    if trainer.args.save_strategy != "no":
        trainer.keeper.require_space(trainer.model)
    if start.weights is not None:
        trainer._load_from_checkpoint(str(start.weights))
    with interruption.finishing_steps():
        trainer.train(resume_from_checkpoint=None if start.checkpoint is None else str(start.checkpoint))
    if trainer.was_stopped:
        raise KeyboardInterrupt


def _finished(checkpoint: Path | None, output_dir: Path, max_steps: int) -> RunReport | None:
    """The report of the run in ``output_dir`` where its last step is done and its result written; else None."""
    if checkpoint is None or not (output_dir / FILE_NAME).exists():
        return None
    if read_seal(checkpoint).step < max_steps:
        return None
    report = read_json(
        RunReport, output_dir / folders.REPORT, error=TrainingError, what="run report",
        fix=f"Delete {output_dir / FILE_NAME} to have the result written again from the checkpoint.",
    )  # fmt: skip
    return dataclasses.replace(report, was_finished=True)


@contextmanager
def _released_on_failure(process: Any, output_dir: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if process.should_save:
            folders.release(output_dir)
        raise


def make_report(
    plan: TrainPlan, trainer: SupervisedTrainer, rows: TrainingRows, memory: metrics.PeakMemory,
    graphs: metrics.GraphCounter, *, seconds: float, notes: tuple[str, ...],
) -> RunReport:  # fmt: skip
    """What the run measured, beside what was predicted."""
    history: list[dict[str, Any]] = trainer.state.log_history
    steps = metrics.steps_from_history(history)
    evaluations = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    counters = trainer.counters
    return RunReport(
        steps=steps,
        initial_eval_loss=evaluations[0] if evaluations else None,
        final_eval_loss=evaluations[-1] if evaluations else None,
        total_seconds=seconds,
        tokens_per_second=metrics.tokens_per_second(steps),
        num_tokens=sum(step.num_tokens for step in steps),
        peak_memory=metrics.compare(plan.memory.peak_bytes, memory.measured_bytes()),
        step_seconds=metrics.compare(
            plan.speed.step_seconds if plan.speed else None, metrics.median_step_seconds(steps)
        ),
        first_step_seconds=counters.first_step_seconds or 0.0,
        input_wait_share=counters.input_wait_seconds / counters.step_seconds if counters.step_seconds else 0.0,
        data=rows.report,
        compiled_graphs=graphs.total,
        recompiled_graphs=graphs.late,
        versions=results.versions(),
        notes=notes,
        incidents=trainer.journal.state.incidents,
        overflowed_steps=trainer.journal.state.overflows,
    )


def _notes(plan: TrainPlan, trainer: SupervisedTrainer, start: Start) -> tuple[str, ...]:
    count = trainer.parameter_count
    notes = [f"{format_count(count.trained)} of {format_count(count.total)} parameters trained ({count.share:.2%})."]
    if start.checkpoint is not None:
        notes.append(f"Went on from {start.checkpoint}.")
    elif plan.request.adapters is not None:
        notes.append(f"Began with the adapter in {plan.request.adapters}.")
    elif start.weights is not None:
        notes.append(f"Began at step 0 with the weights of {start.weights}, a new optimizer and the whole schedule.")
    elif plan.request.resume_from_checkpoint == "auto":
        notes.append("There was no whole checkpoint to go on from: started anew.")
    state = trainer.journal.state
    notes += [f"Step {incident.step}: {incident.said}" for incident in state.incidents]
    if state.overflows:
        notes.append(f"{state.overflows} FP16 steps overflowed and were skipped by the loss scaler.")
    planned = plan.decisions.schedule.value.max_steps
    if planned and trainer.state.max_steps != planned:
        notes.append(f"{trainer.state.max_steps} steps where the plan estimated {planned}: the rows are known now.")
    return tuple(notes)
