"""The trainer's mixin that measures steps, looks at their numbers, and writes them down one step late.

The host reads a step's numbers when the next step has been queued, so that the GPU never waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adaptft.training import guarding, inspection, interruption
from adaptft.training.metrics import PendingStep, to_host
from adaptft.training.numbers import Evidence, StepNumbers
from adaptft.training.sharding import on_device


class LoggedSteps:
    """Mixin over ``transformers.Trainer``; ``PlannedTrainer`` says what its attributes are."""

    def _clip_grad_norm(self: Any, model: nn.Module) -> Any:
        """The norm before clipping; fused optimizers clip on their own way through the gradients."""
        optimizer = self.optimizer.optimizer
        if self.accelerator.scaler is not None or not guarding.heeds_scalars(optimizer):
            return on_device(self.accelerator.clip_grad_norm_(self.trained, self.args.max_grad_norm))
        found = [parameter.grad for parameter in self.trained if parameter.grad is not None]
        norm: Tensor = on_device(nn.utils.get_total_norm(found))
        optimizer.grad_scale = (norm.float() / self.args.max_grad_norm).clamp(min=1.0)
        return norm

    def _get_grad_norm(self: Any, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm before clipping; the step that follows changes nothing where it is no number."""
        norm = grad_norm
        if norm is None:
            norm = on_device(self.accelerator.clip_grad_norm_(self.trained, math.inf))
        if self.accelerator.scaler is None:  # a gradient scaler guards its steps itself
            loss = self._tr_loss if self.args.world_size <= 1 else None
            guarding.guard_step(self.optimizer.optimizer, self.trained, norm, loss)
        return norm

    def _maybe_log_save_evaluate(
        self: Any, tr_loss: Tensor, grad_norm: Any, model: Any, trial: Any, epoch: float, ignore_keys_for_eval: Any,
        start_time: float, learning_rate: float | None = None,
    ) -> None:  # fmt: skip
        if self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.counters.pending.append(self._pending_step(tr_loss, grad_norm, learning_rate))
            tr_loss.zero_()
            self.control.should_log = False
        self._settle(keep=1 if self.args.device.type == "cuda" else 0)
        self._stop_where_asked()
        interrupts = self.control.should_evaluate or self.control.should_save or self.control.should_training_stop
        if not interrupts:
            return
        self._settle(keep=0)
        if self.control.should_evaluate:
            self._evaluate(trial, ignore_keys_for_eval)
            self._stop_where_asked()  # a signal breaks an evaluation off
        if self.control.should_save:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self.step_begin = self.clock.mark()

    def _stop_where_asked(self: Any) -> None:
        """After a signal: save, and take no further step; all ranks see it behind the same step.

        An evaluation that is due is left to the run that goes on (``resumable.owes_evaluation``).
        """
        wished = interruption.requested() if self.args.world_size <= 1 else self.counters.is_stop_wished
        if not wished:
            return
        interruption.arrived()
        if self.state.global_step >= self.state.max_steps and not self.control.should_evaluate:
            return
        self.was_stopped = True
        self.control.should_training_stop, self.control.should_evaluate = True, False
        self.control.should_save = self.args.save_strategy != "no"

    def _pending_step(self: Any, tr_loss: Tensor, grad_norm: Any, learning_rate: float | None) -> PendingStep:
        if self.args.world_size > 1:
            torch.distributed.all_reduce(tr_loss)
            tr_loss /= self.args.world_size
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
            stops=self.counters.stops_of_step,
            begin=begin,
            end=self.step_begin,
            is_logged=self.control.should_log,
            was_skipped=bool(self.accelerator.optimizer_step_was_skipped),
            window=self.steps.window,
        )

    def _settle(self: Any, keep: int) -> None:
        """Read, check and log all pending steps but the last ``keep``."""
        while len(self.counters.pending) > keep:
            pending = self.counters.pending.pop(0)
            self.clock.wait(pending.end)
            self._log_step(pending)

    def _log_step(self: Any, pending: PendingStep) -> None:
        seconds = self.clock.seconds(pending.begin, pending.end)
        self.counters.count(seconds, stops=int(pending.stops))
        loss, num_tokens = pending.loss.item(), int(pending.num_tokens)
        norm = None if pending.gradient_norm is None else float(pending.gradient_norm)
        self._look(pending, loss, norm)
        self._total_loss_scalar += loss if math.isfinite(loss) else 0.0
        logs = {
            "loss": loss,
            "learning_rate": pending.learning_rate,
            "num_tokens": num_tokens,
            "seconds": seconds,
            "tokens_per_second": num_tokens / seconds if seconds else 0.0,
        }
        if norm is not None and math.isfinite(norm):
            logs["grad_norm"] = norm
        if not math.isfinite(loss):
            return  # JSON knows no such number; the incident tells it
        self.state.log_history.append({**logs, "epoch": pending.epoch, "step": pending.step})
        if pending.is_logged:
            with self._as_of(pending.step):
                self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def _look(self: Any, pending: PendingStep, loss: float, norm: float | None) -> None:
        """Have the step's numbers judged; rows of a bad step are written down."""
        now = StepNumbers(
            step=pending.step, loss=loss, gradient_norm=norm, learning_rate=pending.learning_rate,
            was_skipped_by_scaler=pending.was_skipped,
        )  # fmt: skip
        saved = ""
        if now.fault is None:
            self.counters.good_window = pending.window
        elif self.args.should_save:
            saved = inspection.write_step(Path(self.args.output_dir), pending.step, pending.window, self.decode)
        self.watch.look(now, saved=saved, evidence=self._evidence)

    def _evidence(self: Any) -> Evidence:
        total, _ = self.evaluation_loss(self.counters.good_window)
        return Evidence(
            broken_weight=guarding.broken_weight(self.model), good_rows_are_bad=not math.isfinite(total.item())
        )

    @contextmanager
    def _as_of(self: Any, step: int) -> Iterator[None]:
        """Trackers file what they get under the state's step, which may be one ahead of the numbers."""
        now, self.state.global_step = self.state.global_step, step
        try:
            yield
        finally:
            self.state.global_step = now
