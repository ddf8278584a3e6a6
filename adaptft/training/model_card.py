"""README.md of a result: what it is, from what, and how it went, in the numbers of plan.json and report.json."""

from __future__ import annotations

import json

from adaptft.models.locating import unpacked_from
from adaptft.plans import Method, TrainPlan
from adaptft.reports import DataReport, RunReport


def model_card(plan: TrainPlan, report: RunReport) -> str:
    """The card, with the front matter that model hubs read."""
    request = plan.request
    is_adapter = plan.decisions.method.value.train_type != "full"
    use = f"adaptft infer --model {request.model} --adapters ." if is_adapter else "adaptft infer --model ."
    table = "\n".join(f"| {name} | {value} |" for name, value in _facts(plan, report))
    name = request.model.rstrip("/").rsplit("/", 1)[-1]
    library = "peft" if is_adapter else "transformers"
    return "\n".join(
        (
            f"---\nlibrary_name: {library}\nbase_model: {json.dumps(request.model)}\n---\n",
            f"# {name}, fine-tuned\n\n| | |\n|---|---|\n{table}\n",
            f"`plan.json` says why it was trained so, `report.json` how it went.\n\n    {use}\n",
        )
    )


def _facts(plan: TrainPlan, report: RunReport) -> list[tuple[str, str]]:
    request, decisions = plan.request, plan.decisions
    batch, optimizer, schedule = decisions.batch.value, decisions.optimizer.value, decisions.schedule.value
    epochs = [("Epochs", f"{schedule.num_train_epochs:.3g}, as planned")] if schedule.num_train_epochs else []
    return [
        ("Base model", unpacked_from(request.model, request.hub) or request.model),
        *([("Began with", request.adapters)] if request.adapters else []),
        ("Method", _method(decisions.method.value)),
        ("Data", ", ".join(request.dataset) or "adaptft's built-in rows"),
        ("Rows", _rows(plan, report.data)),
        ("Sequences a step", f"{batch.global_batch_size} of up to {batch.max_length} tokens"),
        ("Optimizer", f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {optimizer.lr_scheduler_type}"),
        ("Steps", str(len(report.steps))),
        *epochs,
        ("Tokens", str(report.num_tokens)),
        *_losses(report),
    ]


def _method(method: Method) -> str:
    if method.train_type == "full":
        return "full fine-tuning"
    variants = [name for name, on in (("rsLoRA", method.use_rslora), ("DoRA", method.use_dora)) if on]
    return ", ".join([method.train_type, f"rank {method.lora_rank}", f"alpha {method.lora_alpha:g}", *variants])


def _rows(plan: TrainPlan, data: DataReport) -> str:
    """Rows read, left out and held out; where evaluation has rows of its own, these are named."""
    left_out = f", {data.num_rejected} unusable ones left out" if data.num_rejected else ""
    held_out = plan.decisions.schedule.value.held_out_ratio
    if plan.request.val_dataset:
        evaluated = f"; evaluated on {', '.join(plan.request.val_dataset)}"
    else:
        evaluated = f"; {held_out:.1%} of them held out for evaluation" if held_out else "; none held out"
    return f"{data.num_accepted}{left_out}{evaluated}"


def _losses(report: RunReport) -> list[tuple[str, str]]:
    """Held-out losses where they were measured; else that they were not, and those of the first and last steps."""
    if report.initial_eval_loss is not None or report.final_eval_loss is not None:
        before, after = _loss(report.initial_eval_loss), _loss(report.final_eval_loss)
        return [("Held-out loss", f"{before} before, {after} after")]
    rows = [("Held-out loss", "not measured")]
    if report.steps:
        first, last = report.steps[0].loss, report.steps[-1].loss
        rows.append(("Training loss", f"{_loss(first)} in the first step, {_loss(last)} in the last"))
    return rows


def _loss(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4f}"
