"""transformers.Trainer with the plan's loss, batches and measurements.

``PlannedTrainer`` is a mixin, so that other trainers built on transformers' can take it too. What it replaces of the
Trainer is what costs time in every micro-batch (walking all modules and parameters, waiting for the GPU to look at a
loss) or is not exact (mean of means).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from adaptft.plans import TrainPlan
from adaptft.training import recovery, schedules
from adaptft.training.adapters import trained_parameters
from adaptft.training.batches import Collator, EpochLoader, MicroBatches, Rows, loader
from adaptft.training.checkpoints import CheckpointKeeper
from adaptft.training.identity import RunIdentity
from adaptft.training.metrics import Clock, Counters, PendingStep, to_host

Batch = dict[str, Any]
COUNTS = ("num_tokens", "num_trained")
GPU_LOADER_WORKERS = 2


class PlannedTrainer:
    """Mixin over ``transformers.Trainer``; see the module."""

    plan: TrainPlan
    keeper: CheckpointKeeper
    collator: Collator

    # ---- batches

    def get_train_dataloader(self: Any) -> EpochLoader:
        """Micro-batches of this rank in the order that seed and epoch give."""
        return _loader(self, self.train_dataset, self.args.per_device_train_batch_size, self.args.seed)

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> EpochLoader:
        """The held-out rows of this rank, in their own order."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return _loader(self, rows, self.args.per_device_eval_batch_size, None)

    def get_batch_samples(
        self: Any, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], Tensor | int]:
        """The micro-batches of one accumulation window and the number of trained tokens in all of it, on all ranks."""
        begin = time.perf_counter()
        window = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        self.counters.input_wait_seconds += time.perf_counter() - begin
        tokens, trained = self._over_ranks(*(sum(batch[name] for batch in window) for name in COUNTS))
        self.counters.tokens_of_step = to_host(tokens) if torch.is_tensor(tokens) else tokens
        return window, trained

    def _over_ranks(self: Any, num_tokens: int, num_trained: int) -> tuple[Tensor | int, Tensor | int]:
        """Both summed over the ranks, the second at least 1; between ranks they stay on the device, unread."""
        if self.args.world_size <= 1:
            return num_tokens, max(num_trained, 1)
        totals = torch.tensor([num_tokens, num_trained], device=self.args.device)
        torch.distributed.all_reduce(totals)
        return totals[0], totals[1].clamp(min=1)

    def _prepare_inputs(self: Any, inputs: Batch) -> Batch:
        return {
            name: value.to(self.args.device, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in inputs.items()
            if name not in COUNTS
        }

    # ---- a micro-batch

    def training_step(self: Any, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the step's loss, on the device."""
        if not model.training:
            model.train()
        loss: Tensor = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self: Any, model: nn.Module, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Summed loss over the trained tokens of the window; times the ranks, whose gradients DDP averages."""
        outputs = model(**inputs)
        loss = outputs["loss"] * (max(self.args.world_size, 1) / (num_items_in_batch or 1))
        return (loss, outputs) if return_outputs else loss

    def floating_point_ops(self: Any, inputs: Batch) -> int:
        """Not counted: transformers' count walks all parameters for every micro-batch. The plan knows the FLOPs."""
        return 0

    def _clip_grad_norm(self: Any, model: nn.Module) -> Any:
        return self.accelerator.clip_grad_norm_(self.trained, self.args.max_grad_norm)

    def _get_grad_norm(self: Any, model: nn.Module, grad_norm: Any = None) -> Any:
        return self.accelerator.clip_grad_norm_(self.trained, math.inf) if grad_norm is None else grad_norm

    # ---- a step

    def create_scheduler(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        """The planned learning rate over ``num_training_steps``; its first step is never 0."""
        if self.lr_scheduler is None:
            planned = self.plan.decisions.optimizer.value
            self.lr_scheduler = schedules.scheduler(
                self.optimizer if optimizer is None else optimizer,
                planned.warmup_steps, num_training_steps, planned.lr_scheduler_type,
            )  # fmt: skip
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _run_epoch(self: Any, **state: Any) -> None:
        """As transformers', which would take a step too many where a checkpoint holds the last one."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**state)  # type: ignore[misc]

    def _maybe_log_save_evaluate(
        self: Any, tr_loss: Tensor, grad_norm: Any, model: Any, trial: Any, epoch: float, ignore_keys_for_eval: Any,
        start_time: float, learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        if self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.counters.pending.append(self._pending_step(tr_loss, grad_norm, learning_rate))
            tr_loss.zero_()
            self.control.should_log = False
        interrupts = self.control.should_evaluate or self.control.should_save or self.control.should_training_stop
        self._settle(keep=1 if self.args.device.type == "cuda" and not interrupts else 0)
        if self.control.should_evaluate:
            self._evaluate(trial, ignore_keys_for_eval)
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        if interrupts:
            self.step_begin = self.clock.mark()

    def _pending_step(self: Any, tr_loss: Tensor, grad_norm: Any, learning_rate: float | None) -> PendingStep:
        if self.args.world_size > 1:
            torch.distributed.all_reduce(tr_loss)
            tr_loss /= self.args.world_size
        skipped = bool(self.accelerator.optimizer_step_was_skipped)
        self.counters.overflows += skipped
        begin, loss = self.step_begin, to_host(tr_loss)
        norm = to_host(grad_norm) if torch.is_tensor(grad_norm) else grad_norm
        self.step_begin = self.clock.mark()
        return PendingStep(
            step=self.state.global_step,
            epoch=self.state.epoch,
            loss=loss,
            gradient_norm=norm,
            learning_rate=self._get_learning_rate() if learning_rate is None else learning_rate,
            num_tokens=self.counters.tokens_of_step,
            begin=begin,
            end=self.step_begin,
            is_logged=self.control.should_log,
            was_skipped=skipped,
        )

    def _settle(self: Any, keep: int) -> None:
        """Read, check and log all pending steps but the last ``keep``."""
        while len(self.counters.pending) > keep:
            pending = self.counters.pending.pop(0)
            self.clock.wait(pending.end)
            self._log_step(pending)

    def _log_step(self: Any, pending: PendingStep) -> None:
        seconds = self.clock.seconds(pending.begin, pending.end)
        self.counters.step_seconds += seconds
        if self.counters.first_step_seconds is None:
            self.counters.first_step_seconds = seconds
        loss, num_tokens = pending.loss.item(), int(pending.num_tokens)
        norm = None if pending.gradient_norm is None else float(pending.gradient_norm)
        recovery.check_step(pending.step, loss, norm, skipped=pending.was_skipped, is_first=pending.step == 1)
        self._total_loss_scalar += loss
        logs = {
            "loss": loss,
            "learning_rate": pending.learning_rate,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "tokens_per_second": num_tokens / seconds if seconds else 0.0,
        }
        if norm is not None and math.isfinite(norm):
            logs["grad_norm"] = norm
        self.state.log_history.append({**logs, "epoch": pending.epoch, "step": pending.step})
        if pending.is_logged:
            with self._as_of(pending.step):
                self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    @contextmanager
    def _as_of(self: Any, step: int) -> Iterator[None]:
        """Trackers file what they get under the state's step, which may be one ahead of the numbers."""
        now, self.state.global_step = self.state.global_step, step
        try:
            yield
        finally:
            self.state.global_step = now

    # ---- evaluation

    @torch.no_grad()
    def evaluate(
        self: Any, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean loss over all trained tokens of the held-out rows, in nats; each token counts the same."""
        begin = time.perf_counter()
        was_training = self.model.training
        self.model.eval()
        total, count = torch.zeros((), device=self.args.device), 0
        eager = torch.compiler.set_stance("force_eager") if self.plan.decisions.compile.value.enabled else nullcontext()
        with eager:
            for batch in self.get_eval_dataloader(eval_dataset):
                count += batch["num_trained"]
                total += self.model(**self._prepare_inputs(batch))["loss"]
        self.model.train(was_training)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(total)
        loss = total.item() / int(self._over_ranks(0, count)[1])
        metrics = {f"{metric_key_prefix}_loss": loss, f"{metric_key_prefix}_seconds": time.perf_counter() - begin}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.step_begin = self.clock.mark()
        return metrics

    # ---- checkpoints

    def _init_training_state(
        self: Any, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, resume: Any, trial: Any
    ) -> tuple[int, int]:
        """As transformers', but intervals and batch size are the plan's, not those in the checkpoint."""
        started: tuple[int, int] = super()._init_training_state(  # type: ignore[misc]
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume, trial
        )
        self.state.compute_steps(self.args, max_steps)
        self.state.train_batch_size = self._train_batch_size
        return started

    def _save_checkpoint(self: Any, model: nn.Module, trial: Any) -> None:
        self.keeper.require_space(self.model)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.keeper.seal(self.state.global_step)


def _loader(trainer: Any, rows: Rows, size: int, seed: int | None) -> EpochLoader:
    """Training batches (those with a seed) are made ahead by workers where a GPU would wait for them."""
    arguments = trainer.args
    on_gpu = arguments.device.type == "cuda"
    order = MicroBatches(
        len(rows), size, seed=seed, rank=arguments.process_index, num_ranks=max(arguments.world_size, 1)
    )
    workers = GPU_LOADER_WORKERS if on_gpu and seed is not None else 0
    return loader(rows, order, trainer.collator, pinned=on_gpu, num_workers=workers)


class SupervisedTrainer(PlannedTrainer, Trainer):  # type: ignore[misc]
    """Supervised fine-tuning of a causal language model as planned."""

    def __init__(
        self, plan: TrainPlan, model: Any, arguments: TrainingArguments, *, collator: Collator, train_rows: Rows,
        eval_rows: Rows | None, identity: RunIdentity, callbacks: list[TrainerCallback] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model=model, args=arguments, train_dataset=train_rows, eval_dataset=eval_rows, callbacks=callbacks
        )
        self.remove_callback(PrinterCallback)
        self.plan, self.collator = plan, collator
        self.trained = trained_parameters(model)
        self.keeper = CheckpointKeeper(plan, Path(arguments.output_dir), identity)
        self.clock, self.counters = Clock(arguments.device), Counters()
        self.step_begin = self.clock.mark()
