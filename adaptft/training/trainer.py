"""transformers.Trainer with the plan's loss, batches and measurements.

``PlannedTrainer`` is a mixin, so that other trainers built on transformers' can take it too. What it replaces of the
Trainer is what costs time in every micro-batch (walking all modules and parameters, waiting for the GPU to look at a
loss) or is not exact (mean of means).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from adaptft.plans import TrainPlan
from adaptft.training import interruption, recovery, sequences
from adaptft.training.adapters import ParameterCount, count_parameters, trained_parameters
from adaptft.training.arguments import own_optimizer
from adaptft.training.batches import Collator, EpochLoader, MicroBatches, Rows, loader
from adaptft.training.checkpointing import has_dropout
from adaptft.training.identity import RunIdentity
from adaptft.training.incidents import Journal
from adaptft.training.keeping import CheckpointKeeper
from adaptft.training.logged_steps import LoggedSteps
from adaptft.training.metrics import Clock, Counters, to_host
from adaptft.training.numbers import NumberWatch
from adaptft.training.parts import Batch
from adaptft.training.resumable import Resumable
from adaptft.training.sharding import Sharded
from adaptft.training.stepping import Field, Steps

COUNTS = ("num_tokens", "num_trained")
GPU_LOADER_WORKERS = 2


class PlannedTrainer(LoggedSteps, Resumable, Sharded):
    """Mixin over ``transformers.Trainer``; see the module."""

    plan: TrainPlan
    collator: Collator
    trained: list[nn.Parameter]
    parameter_count: ParameterCount
    keeper: CheckpointKeeper
    journal: Journal
    watch: NumberWatch
    steps: Steps
    eval_steps: Steps
    clock: Clock
    counters: Counters
    decode: Callable[[list[int]], str] | None
    was_stopped: bool
    """True where a signal ended the run before its last step."""

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
        counts = (sum(batch[name] for batch in window) for name in COUNTS)
        tokens, trained, stops = self._over_ranks(*counts, int(interruption.requested()))
        self.counters.tokens_of_step, self.counters.stops_of_step = to_host(tokens), to_host(stops)
        self.steps.begin(self.state.global_step + 1)
        return window, trained.clamp(min=1) if torch.is_tensor(trained) else max(trained, 1)

    def _over_ranks(self: Any, *counts: int) -> Sequence[Tensor | int]:
        """Each summed over all rows; between ranks they stay on the device, unread. Ranks that share rows count one."""
        if self.args.world_size <= 1:
            return counts
        totals = torch.tensor(counts, device=self.args.device)
        torch.distributed.all_reduce(totals)
        once: Tensor = -(-totals // self.plan.decisions.placement.value.sequence_parallel_size)
        return once.unbind()

    def _prepare_inputs(self: Any, inputs: Batch) -> Batch:
        # a rank that shares rows trains some of the tokens that were counted
        left_out = COUNTS if self.plan.decisions.placement.value.shares_rows else ("num_tokens",)
        return {
            name: value.to(self.args.device, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in inputs.items()
            if name not in left_out
        }

    # ---- a micro-batch

    def training_step(self: Any, model: nn.Module, inputs: Batch, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch, in so many parts as memory demands.

        Returns its share of the step's loss, on the device.
        """
        if not model.training:
            model.train()

        def run(part: Batch, *, is_last: bool) -> Tensor:
            ready = self._prepare_inputs(part)
            with nullcontext() if is_last else self.without_exchange(model), sequences.shared(self, ready):
                loss: Tensor = self.compute_loss(model, ready, num_items_in_batch=num_items_in_batch)
                self.accelerator.backward(loss)
            return loss.detach()

        loss: Tensor = self.steps.take(inputs, run, model.zero_grad)
        return loss

    def without_exchange(self: Any, model: nn.Module) -> AbstractContextManager[None]:
        """Inside, gradients stay on their rank; shards are exchanged all the same: no rank could hold the whole."""
        context: AbstractContextManager[None] = (
            nullcontext() if self.is_fsdp_enabled else self.accelerator.no_sync(model)
        )
        return context

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

    # ---- a step

    def _run_epoch(self: Any, **state: Any) -> None:
        """As transformers', which would take a step too many where a checkpoint holds the last one."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(**state)  # type: ignore[misc]

    # ---- evaluation

    def evaluate(
        self: Any, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Mean loss over all trained tokens of the held-out rows, in nats; each token counts the same.

        Nothing where the run was asked to stop meanwhile: saving is more urgent.

        Raises:
            KeyboardInterrupt: it was, and before this process's first step: there is nothing to save.
        """
        begin = time.perf_counter()
        total, count = self.evaluation_loss(self.get_eval_dataloader(eval_dataset))
        self.step_begin = self.clock.mark()
        if self.args.world_size > 1:
            torch.distributed.all_reduce(total)
        elif interruption.requested():
            if self.counters.first_step_seconds is None:
                raise KeyboardInterrupt
            return {}
        loss = total.item() / max(int(self._over_ranks(count)[0]), 1)
        metrics = {f"{metric_key_prefix}_loss": loss, f"{metric_key_prefix}_seconds": time.perf_counter() - begin}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.step_begin = self.clock.mark()
        return metrics

    @torch.no_grad()
    def evaluation_loss(self: Any, batches: Iterable[Batch]) -> tuple[Tensor, int]:
        """Summed loss of ``batches`` on this rank, and how many tokens it is of."""

        def run(part: Batch, *, is_last: bool) -> Tensor:
            ready = self._prepare_inputs(part)
            with sequences.shared(self, ready):
                loss: Tensor = self.model(**ready)["loss"]
            return loss

        was_training = self.model.training
        self.model.eval()
        total, count = torch.zeros((), device=self.args.device), 0
        eager = torch.compiler.set_stance("force_eager") if self.plan.decisions.compile.value.enabled else nullcontext()
        with eager:
            for batch in batches:
                if interruption.requested() and self.args.world_size <= 1:
                    break
                self.eval_steps.begin(self.state.global_step)
                count += batch["num_trained"]
                total += self.eval_steps.take(batch, run, clear=lambda: None)
        self.model.train(was_training)
        return total, count


def _loader(trainer: Any, rows: Rows, size: int, seed: int | None) -> EpochLoader:
    """Training batches (those with a seed) are made ahead by workers where a GPU would wait for them."""
    arguments = trainer.args
    on_gpu = arguments.device.type == "cuda"
    sharing = trainer.plan.decisions.placement.value.sequence_parallel_size
    order = MicroBatches(
        len(rows), size, seed=seed, rank=arguments.process_index // sharing,
        num_ranks=max(arguments.world_size // sharing, 1),
    )  # fmt: skip
    workers = GPU_LOADER_WORKERS if on_gpu and seed is not None else 0
    return loader(rows, order, trainer.collator, pinned=on_gpu, num_workers=workers)


class SupervisedTrainer(PlannedTrainer, Trainer):  # type: ignore[misc]
    """Supervised fine-tuning of a causal language model as planned.

    Args:
        journal: what went wrong so far in a run that goes on.
        decode: tokens to text, for rows that are written down.
    """

    def __init__(
        self, plan: TrainPlan, model: Any, arguments: TrainingArguments, *, collator: Collator, train_rows: Rows,
        eval_rows: Rows | None, identity: RunIdentity, journal: Journal,
        decode: Callable[[list[int]], str] | None = None, callbacks: list[TrainerCallback] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            model=model, args=arguments, train_dataset=train_rows, eval_dataset=eval_rows, callbacks=callbacks,
            optimizer_cls_and_kwargs=own_optimizer(plan),
        )  # fmt: skip
        self.remove_callback(PrinterCallback)
        self.plan, self.collator, self.journal, self.decode = plan, collator, journal, decode
        self.trained, self.parameter_count = trained_parameters(model), count_parameters(model)
        self.keeper = CheckpointKeeper(plan, Path(arguments.output_dir), identity, journal)
        self.watch = NumberWatch(journal, is_fp16=arguments.fp16)
        self.steps, self.eval_steps = self._steps("part_tokens"), self._steps("eval_part_tokens")
        self.clock, self.counters, self.was_stopped = Clock(arguments.device), Counters(), False
        self.step_begin = self.clock.mark()

    def _steps(self, field: Field) -> Steps:
        return Steps(
            self.journal,
            field,
            explain=lambda: recovery.out_of_memory(self.plan, recovery.free_memory(self.plan)),
            has_dropout=has_dropout(self.model),
            exchanges=lambda is_last: (
                self.is_fsdp_enabled or (is_last and getattr(self.model_wrapped, "require_backward_grad_sync", False))
            ),
        )
