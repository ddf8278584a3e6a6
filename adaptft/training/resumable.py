"""The trainer's mixin that saves checkpoints and goes on from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import DefaultFlowCallback

from adaptft.errors import OutputError
from adaptft.training import interruption, preflight, schedules
from adaptft.training.keeping import PAUSES_SECONDS


@contextmanager
def never_unpickled(folder: str) -> Iterator[None]:
    """Say in our words that torch, which makes numbers and tensors only, met something else in a file of ``folder``.

    Raises:
        OutputError: it did.
    """
    try:
        yield
    except UnpicklingError as cause:
        raise OutputError(
            f"The checkpoint {folder} holds objects that could run code when they are read: no run wrote it so.",
            fix="Take another checkpoint, or begin with its weights alone: --resume_only_model true.",
        ) from cause


def owes_evaluation(arguments: TrainingArguments, state: TrainerState, steps_per_epoch: int) -> bool:
    """True where an evaluation is due behind the step that ``state`` stands at, and its history has none.

    transformers' own rule says what is due. The history goes with each checkpoint, so an evaluation that a signal or a
    kill kept from its step is owed until a checkpoint holds its result, whatever came between.
    """
    step = state.global_step
    if any(entry["step"] == step and "eval_loss" in entry for entry in state.log_history):
        return False
    rule, due = DefaultFlowCallback(), TrainerControl()
    rule.on_step_end(arguments, state, due)
    if step % steps_per_epoch == 0 or step >= state.max_steps:
        rule.on_epoch_end(arguments, state, due)
    return step == 0 or bool(due.should_evaluate)


class Resumable:
    """Mixin over ``transformers.Trainer``; ``PlannedTrainer`` says what its attributes are."""

    def _init_training_state(
        self: Any, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume: Any, trial: Any
    ) -> tuple[int, int]:
        """As transformers', but intervals and batch size are the plan's, not those in the checkpoint.

        What the step it begins at owes is evaluated before the next one.
        """
        started: tuple[int, int] = super()._init_training_state(  # type: ignore[misc]
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume, trial
        )
        self.state.compute_steps(self.args, max_steps)
        self.state.train_batch_size = self._train_batch_size
        self.args.eval_on_start = self.eval_dataset is not None and owes_evaluation(
            self.args, self.state, num_update_steps_per_epoch
        )
        return started

    def _prepare_for_training(self: Any, max_steps: int, loader: Any, resume: Any) -> Any:
        """As transformers'; then the run is rehearsed before its first step."""
        model, loader = super()._prepare_for_training(max_steps, loader, resume)  # type: ignore[misc]
        self._shards_made(model)
        preflight.rehearse(self, model)
        return model, loader

    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        """The planned learning rate over ``num_training_steps``; its first step is never 0."""
        if self.lr_scheduler is None:
            planned = self.plan.decisions.optimizer.value
            self.lr_scheduler = schedules.scheduler(
                self.optimizer if optimizer is None else optimizer,
                planned.warmup_steps, num_training_steps, planned.lr_scheduler_type, self.journal.state.rate_factor,
            )  # fmt: skip
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self: Any, checkpoint: str | None) -> None:
        """As transformers', but rates, decay and betas are the plan's, not those in the checkpoint."""
        if checkpoint is None:
            return
        planned = schedules.planned_numbers(self.optimizer)
        with never_unpickled(checkpoint):
            self.load_optimizer(checkpoint)
        schedules.set_planned(self.optimizer, self.lr_scheduler, planned)

    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        with never_unpickled(str(checkpoint)):
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    def _get_output_dir(self: Any, trial: Any) -> str:
        """Where transformers writes checkpoints: a folder that is not yet one."""
        return str(self.keeper.staging)

    @property
    def save_pauses(self: Any) -> tuple[float, ...]:
        """A rank may not try again alone."""
        return PAUSES_SECONDS if self.args.world_size <= 1 else ()

    def write_checkpoint(self: Any, model: nn.Module) -> None:
        """Have transformers write all of a checkpoint into the keeper's staging folder."""
        super()._save_checkpoint(model, None)  # type: ignore[misc]

    def _save_checkpoint(self: Any, model: nn.Module, trial: Any) -> None:
        """Save this step, once; not amid steps whose numbers are none, which may stem from broken weights."""
        step = self.state.global_step
        if self.watch.bad_streak or step == self.counters.saved_step:
            return
        self.keeper.require_space(self.model)
        self.keeper.write(lambda: self.write_checkpoint(model), pauses=self.save_pauses)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.keeper.write(lambda: self.keeper.seal(step), pauses=())
        interruption.kept(self.keeper.folder / f"checkpoint-{step}")
        self.counters.saved_step = step
