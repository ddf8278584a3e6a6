"""Optimizer, learning rate, and when things happen."""

from __future__ import annotations

from math import ceil

from adaptft.facts import DatasetShape
from adaptft.plans import Batch, Decision, Method, Optimizer, Schedule, Source
from adaptft.requests import TrainRequest, TrainType

LEARNING_RATES: dict[TrainType, float] = {"lora": 1e-4, "qlora": 1e-4, "full": 1e-5}
WEIGHT_DECAY = 0.1
WARMUP_RATIO = 0.05
EPOCHS = 3.0
FEWEST_ROWS_TO_SPLIT = 200
HELD_OUT_RATIO, MOST_HELD_OUT = 0.05, 200
EVALUATION_SHARE = 0.1
PACKING_LOSS = 1.02
"""Packs hold a little less than they could: best-fit packing fills 98 % and more."""


def held_out_ratio(dataset: DatasetShape, request: TrainRequest) -> tuple[float, str]:
    """The share of the rows that is held out, and why."""
    if request.val_dataset:
        return 0.0, "held-out rows come from val_dataset"
    if request.split_dataset_ratio is not None:
        return request.split_dataset_ratio, f"{request.split_dataset_ratio:.1%} of the rows held out, as asked for"
    if request.eval_strategy == "no":
        return 0.0, "no evaluation, as asked for"
    few = dataset.num_rows < FEWEST_ROWS_TO_SPLIT
    if few and (dataset.num_rows < 2 or not asks_for_evaluation(request)):
        there = f"{dataset.num_rows} are" if dataset.num_rows > 1 else "1 is"
        return 0.0, f"no rows held out: {there} too few to spare any"
    ratio = min(max(HELD_OUT_RATIO, 1 / dataset.num_rows), MOST_HELD_OUT / dataset.num_rows)
    return ratio, f"{ratio:.1%} of the rows held out for evaluation" + (", which is asked for" if few else "")


def asks_for_evaluation(request: TrainRequest) -> bool:
    """True where the user said when to evaluate; the default of ``eval_strategy`` says nothing."""
    if request.eval_strategy == "no":
        return False
    return "eval_strategy" in request.given or request.eval_strategy == "epoch" or request.eval_steps is not None


def num_sequences(dataset: DatasetShape, ratio: float, max_length: int, packing: bool) -> int:
    """Sequences of an epoch: rows, or packs of them."""
    if not packing:
        return max(1, dataset.num_rows - int(dataset.num_rows * ratio))
    return max(1, ceil(dataset.num_tokens * (1 - ratio) / max_length * PACKING_LOSS))


def choose_schedule(
    dataset: DatasetShape, batch: Batch, ratio: float, why: str, request: TrainRequest
) -> Decision[Schedule]:
    """Steps of the run; up to ten evaluations and four checkpoints in it, unless asked otherwise."""
    per_epoch = ceil(num_sequences(dataset, ratio, batch.max_length, batch.packing) / batch.global_batch_size)
    epochs = request.num_train_epochs if request.num_train_epochs is not None else EPOCHS
    steps = request.max_steps or max(1, ceil(per_epoch * epochs))
    evaluates = bool(ratio or request.val_dataset)
    strategies = {"epoch": per_epoch, "no": 0}
    between = request.eval_steps or _steps_between_evaluations(dataset, batch, ratio, steps)
    eval_steps = strategies.get(request.eval_strategy, between) if evaluates else 0
    save_steps = strategies.get(request.save_strategy, request.save_steps or min(500, max(20, ceil(steps / 4))))
    schedule = Schedule(
        max_steps=steps,
        num_train_epochs=round(steps / per_epoch, 2),
        held_out_ratio=ratio,
        eval_steps=eval_steps,
        save_steps=save_steps,
        logging_steps=request.logging_steps,
    )
    passes = f"{epochs:g} pass{'es' * (epochs != 1)} of {per_epoch} step{'s' * (per_epoch != 1)}"
    said = "asked for" if request.max_steps else passes
    return Decision(schedule, f"{said}; {why}", "user" if request.max_steps or request.num_train_epochs else "policy")


def _steps_between_evaluations(dataset: DatasetShape, batch: Batch, ratio: float, steps: int) -> int:
    """A tenth of the run, or more where evaluation would take a tenth of the time (forward is a third of a step)."""
    sequence_tokens = batch.max_length if batch.packing else min(batch.max_length, dataset.mean_row_tokens)
    step_tokens = batch.global_batch_size * sequence_tokens
    evaluation = dataset.num_tokens * ratio / 3
    return min(steps, max(1, steps // 10, ceil(evaluation / (EVALUATION_SHARE * step_tokens))))


def choose_optimizer(method: Method, name: str, steps: int, request: TrainRequest) -> Decision[Optimizer]:
    """AdamW with the usual learning rate for the method."""
    rate = request.learning_rate if request.learning_rate is not None else LEARNING_RATES[method.train_type]
    ratio = request.warmup_ratio if request.warmup_ratio is not None else WARMUP_RATIO
    warmup = int(ratio * steps) if request.warmup_steps is None else min(request.warmup_steps, steps)
    optimizer = Optimizer(
        name=name,  # type: ignore[arg-type]
        learning_rate=rate,
        weight_decay=request.weight_decay if request.weight_decay is not None else WEIGHT_DECAY,
        adam_beta1=request.adam_beta1,
        adam_beta2=request.adam_beta2,
        max_grad_norm=request.max_grad_norm,
        lr_scheduler_type=request.lr_scheduler_type,
        warmup_steps=warmup,
        stochastic_rounding=name == "adamw" and method.train_type == "full" and method.base_storage == "bf16",
    )
    wishes = (request.learning_rate, request.optim, request.weight_decay, request.warmup_ratio, request.warmup_steps)
    source: Source = "policy" if all(wish is None for wish in wishes) else "user"
    states = "fused AdamW" if name == "adamw" else "states in 8 bit, since wider ones do not fit"
    states = f"{name} asked for" if request.optim else states
    states += "; bf16 weights rounded at random, so that small updates count" if optimizer.stochastic_rounding else ""
    return Decision(optimizer, f"{states}; learning rate {rate:g} for {method.train_type}", source)
