"""From a plan and a model folder to a trainer that is ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from adaptft.errors import TrainingError
from adaptft.models.continuing import fill_adapter
from adaptft.models.planned import load_for_training, own_device
from adaptft.plans import DTYPE_NAMES, TrainPlan
from adaptft.training import adapters, checking, checkpointing, losses, numerics, ranks
from adaptft.training.arguments import training_arguments
from adaptft.training.batches import Collator, Form, Rows
from adaptft.training.identification import identify
from adaptft.training.incidents import Journal
from adaptft.training.inspection import tokenizer_of
from adaptft.training.numbers import require_learning_rate
from adaptft.training.rows import TrainingRows
from adaptft.training.trainer import SupervisedTrainer


def build_trainer(
    plan: TrainPlan,
    output_dir: Path,
    model_path: Path,
    rows: TrainingRows,
    *,
    callbacks: Sequence[Any] = (),
    journal: Journal | None = None,
) -> SupervisedTrainer:
    """Load and prepare the model, and set the trainer over it.

    Args:
        journal: what went wrong so far in the run that goes on.

    Raises:
        TrainingError: the model is not one the plan can be carried out on, or nothing would be learned.
        MissingPackage: a package the plan needs is not installed.
    """
    require_learning_rate(plan.decisions.optimizer.value.learning_rate)
    arguments = training_arguments(plan, output_dir, evaluates=rows.evaluation is not None)
    if plan.decisions.placement.value.num_ranks == 1:
        arguments._n_gpu = min(arguments.n_gpu, 1)  # transformers would wrap nn.DataParallel over all it sees
    journal = journal or Journal(is_told=arguments.should_save)
    model = build_model(plan, model_path, rows.training)
    if said := adapters.unfused(model, plan.decisions.adapters.value):
        journal.add_once("not_fused", 0, said)
    return SupervisedTrainer(
        plan,
        model,
        arguments,
        collator=collator(plan),
        train_rows=rows.training,
        eval_rows=rows.evaluation,
        callbacks=list(callbacks),
        identity=identify(plan, model_path, rows),
        journal=journal,
        decode=tokenizer_of(model_path),
    )


def build_model(plan: TrainPlan, path: Path, rows: Rows) -> Any:
    """The model of ``plan``: loaded, adapted, with the planned loss, recomputing and compiled layers.

    Args:
        rows: what it is to be trained on, which an FP8 base is rounded for.
    """
    numerics.set_seed(plan.request.seed)  # adapters start at random: the same plan starts from the same ones
    return prepare_model(plan, load_for_training(plan, path, has_weights=ranks.has_weights(plan.decisions)), rows)


def prepare_model(plan: TrainPlan, base: Any, rows: Rows) -> Any:
    """A loaded ``base``, made into what ``plan`` trains: adapters, loss, recomputing and compiled layers."""
    decisions = plan.decisions
    model = adapters.prepare(base, decisions, rows, own_device(plan))
    if plan.request.adapters is not None:
        fill_adapter(model, Path(plan.request.adapters), Path(plan.request.model), error=TrainingError)
    base = adapters.causal_lm(model)
    losses.install_loss(base, decisions.loss.value, getattr(torch, DTYPE_NAMES[decisions.precision.value.autocast]))
    if not decisions.placement.value.is_sharded:  # else the shards are checked, once they are made
        checking.check_planned_loss(plan, base)
    checkpointing.apply_checkpointing(base, decisions.checkpointing.value, has_dropout=checkpointing.has_dropout(model))
    if decisions.compile.value.enabled:
        checkpointing.compile_layers(base)
    return model.train()  # weights are loaded in evaluation mode, in which no layer recomputes


def collator(plan: TrainPlan) -> Collator:
    """How rows become micro-batches under this plan."""
    batch, attention = plan.decisions.batch.value, plan.decisions.attention.value.implementation
    knows_documents = attention == "varlen"
    form: Form = "packed" if batch.packing else "flat" if knows_documents else "padded"
    return Collator(form=form, length=batch.max_length, with_boundaries=knows_documents)
