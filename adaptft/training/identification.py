"""The identity of the run that a plan makes of a model and rows; apart from ``identity``, which needs no torch."""

from __future__ import annotations

import math
from pathlib import Path

from adaptft import models
from adaptft.plans import TrainPlan
from adaptft.training.arguments import num_steps
from adaptft.training.batches import MicroBatches
from adaptft.training.identity import RunIdentity
from adaptft.training.rows import TrainingRows


def identify(plan: TrainPlan, model_path: Path, rows: TrainingRows) -> RunIdentity:
    """The identity of the run that ``plan`` makes of the model in ``model_path`` and ``rows``."""
    request, decisions = plan.request, plan.decisions
    method, batch, optimizer = decisions.method.value, decisions.batch.value, decisions.optimizer.value
    targets = (method.target_regex,) if method.target_regex is not None else tuple(sorted(method.target_modules))
    return RunIdentity(
        model=request.model,
        model_fingerprint=models.fingerprint(model_path),
        train_type=method.train_type,
        dataset=request.dataset,
        rows_hash=rows.rows_hash,
        val_dataset=request.val_dataset,
        split_dataset_ratio=decisions.schedule.value.held_out_ratio,
        system=request.system,
        train_on_prompt=request.train_on_prompt,
        mask_history=request.mask_history,
        truncation_strategy=request.truncation_strategy,
        max_length=batch.max_length,
        packing=batch.packing,
        global_batch_size=batch.global_batch_size,
        lora_rank=method.lora_rank,
        lora_alpha=method.lora_alpha,
        lora_dropout=method.lora_dropout,
        target_modules=targets,
        modules_to_save=tuple(sorted(method.modules_to_save)),
        use_rslora=method.use_rslora,
        use_dora=method.use_dora,
        optim=optimizer.name,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        max_grad_norm=optimizer.max_grad_norm,
        lr_scheduler_type=optimizer.lr_scheduler_type,
        warmup_steps=optimizer.warmup_steps,
        max_steps=total_steps(plan, len(rows.training)),
        seed=request.seed,
    )


def total_steps(plan: TrainPlan, num_rows: int) -> int:
    """Optimizer steps of the run over ``num_rows`` rows or packs, as transformers counts them."""
    asked = num_steps(plan)
    if asked >= 0:
        return asked
    batch = plan.decisions.batch.value
    batches = MicroBatches(num_rows, batch.micro_batch_size, seed=None, num_ranks=batch.data_parallel_size)
    steps_per_epoch = max(-(-len(batches) // batch.gradient_accumulation_steps), 1)
    return math.ceil(plan.decisions.schedule.value.num_train_epochs * steps_per_epoch)
