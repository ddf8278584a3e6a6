"""A plan in the words of ``transformers.TrainingArguments``. Nothing is decided here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.errors import MissingPackage
from adaptft.optional import is_installed
from adaptft.plans import Decisions, Dtype, TrainPlan
from adaptft.training import ranks

if TYPE_CHECKING:
    from transformers import TrainingArguments

# adaptft's name -> transformers' name, (on the GPU, on the CPU)
OPTIMIZERS: dict[str, tuple[str, str]] = {
    "adamw": ("adamw_torch_fused", "adamw_torch"),
    "adamw_8bit": ("adamw_8bit", "adamw_8bit"),
    "paged_adamw_8bit": ("paged_adamw_8bit", "paged_adamw_8bit"),
}


ADAM_EPSILON = 1e-8


def autocast_dtype(decisions: Decisions) -> Dtype:
    """The type torch's autocast casts to; fp32 where every weight already has the type it computes in."""
    precision, method = decisions.precision.value, decisions.method.value
    if method.train_type == "full" and precision.weights == precision.autocast:
        return "fp32"
    return precision.autocast


def own_optimizer(plan: TrainPlan) -> tuple[type[Any], dict[str, Any]] | None:
    """Class and arguments of an optimizer that transformers has no name for; None where it has."""
    from adaptft.kernels.adamw import RoundedAdamW

    optimizer = plan.decisions.optimizer.value
    if not optimizer.stochastic_rounding:
        return None
    betas = (optimizer.adam_beta1, optimizer.adam_beta2)
    return RoundedAdamW, {"lr": optimizer.learning_rate, "betas": betas, "eps": ADAM_EPSILON, "seed": plan.request.seed}


def num_steps(plan: TrainPlan) -> int:
    """Optimizer steps, where their number was asked for; -1 where passes over the data were."""
    schedule = plan.decisions.schedule.value
    if plan.request.max_steps is None and schedule.num_train_epochs > 0:
        return -1
    return schedule.max_steps


def training_arguments(plan: TrainPlan, output_dir: Path, *, evaluates: bool) -> TrainingArguments:
    """The arguments of ``transformers.Trainer``; making them also joins the process group of several ranks.

    Raises:
        MissingPackage: ``report_to`` names a tracker that is not installed.
    """
    from transformers import TrainingArguments

    decisions, request = plan.decisions, plan.request
    batch = decisions.batch.value
    autocast = autocast_dtype(decisions)
    arguments = TrainingArguments(
        output_dir=str(output_dir),
        per_device_train_batch_size=batch.micro_batch_size,
        per_device_eval_batch_size=batch.eval_batch_size,
        gradient_accumulation_steps=batch.gradient_accumulation_steps,
        bf16=autocast == "bf16",
        fp16=autocast == "fp16",
        seed=request.seed,
        use_cpu=not plan.uses_gpu,
        remove_unused_columns=False,
        label_names=["labels"],
        use_cache=False,
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        report_to=_trackers(request.report_to),
        logging_nan_inf_filter=False,  # it waits for the GPU in every micro-batch; trainer.py looks once a step
        save_total_limit=None,  # checkpoints.py rotates, after it has sealed the new one
        **_optimizer(plan),
        **_schedule(plan, evaluates=evaluates),
        **ranks.arguments_of_ranks(plan, on_gpu=plan.uses_gpu),
    )
    if plan.decisions.placement.value.is_sharded:
        arguments.fsdp_plugin_args["mixed_precision_policy"] = ranks.mixed_precision(plan)
    return arguments


def _optimizer(plan: TrainPlan) -> dict[str, Any]:
    optimizer = plan.decisions.optimizer.value
    return {
        "optim": OPTIMIZERS[optimizer.name][0 if plan.uses_gpu else 1],
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.adam_beta1,
        "adam_beta2": optimizer.adam_beta2,
        "max_grad_norm": optimizer.max_grad_norm,
        "lr_scheduler_type": optimizer.lr_scheduler_type,
        "warmup_steps": optimizer.warmup_steps,
    }


def _schedule(plan: TrainPlan, *, evaluates: bool) -> dict[str, Any]:
    schedule, request = plan.decisions.schedule.value, plan.request
    return {
        "max_steps": num_steps(plan),
        "num_train_epochs": schedule.num_train_epochs,
        "logging_steps": max(schedule.logging_steps, 1),
        "eval_strategy": _when(request.eval_strategy, schedule.eval_steps) if evaluates else "no",
        "eval_steps": schedule.eval_steps or None,
        "save_strategy": _when(request.save_strategy, schedule.save_steps),
        "save_steps": max(schedule.save_steps, 1),
    }


def _when(strategy: str, steps: int) -> str:
    return "no" if strategy == "steps" and steps == 0 else strategy


def _trackers(report_to: tuple[str, ...]) -> list[str]:
    names = [name for name in report_to if name != "none"]
    for name in names:
        if not is_installed(name):
            raise MissingPackage(
                f"report_to {name} needs the package {name}, which is not installed.",
                fix=f"Install it: pip install {name}; or train with --report_to none.",
            )
    return names or ["none"]
