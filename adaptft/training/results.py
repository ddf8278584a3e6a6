"""The result folder: weights, tokenizer and template, plan, report, model card and the description of it all."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from adaptft import __version__, models
from adaptft.artifacts import Artifact, write_artifact
from adaptft.plans import TrainPlan
from adaptft.records import write_json
from adaptft.reports import RunReport
from adaptft.training import folders

PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "datasets")
PARTIAL, REPORT = folders.PARTIAL, folders.REPORT


def write_result(plan: TrainPlan, report: RunReport, model: Any, base: Any, output_dir: Path) -> None:
    """Write the trained ``model`` (adapter or whole) and all that belongs to it into ``output_dir``.

    Everything is written beside first and moved in when it is whole.

    Args:
        base: the ``LocalModel`` that was trained on.
    """
    partial = output_dir / folders.PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    model.save_pretrained(partial)
    models.save_companions(base.path, partial)
    write_json(partial / folders.REPORT, report)
    (partial / "README.md").write_text(model_card(plan, report), encoding="utf-8")
    write_artifact(partial, describe(plan, base))
    folders.publish(partial, output_dir)


def describe(plan: TrainPlan, base: Any) -> Artifact:
    """The result's adaptft.json."""
    request, method = plan.request, plan.decisions.method.value
    return Artifact(
        kind="model" if method.train_type == "full" else "adapter",
        adaptft=__version__,
        base_model=request.model,
        base_path=str(base.path),
        base_fingerprint=models.fingerprint(base.path),
        train_type=method.train_type,
        dataset=request.dataset,
        system=request.system,
        columns=request.columns,
        max_length=plan.decisions.batch.value.max_length,
    )


def versions() -> dict[str, str]:
    """Installed versions of the packages that shape a run's numbers."""
    found = {"adaptft": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def model_card(plan: TrainPlan, report: RunReport) -> str:
    """README.md of the result: what it is, from what, and how it went."""
    request, decisions = plan.request, plan.decisions
    method, batch, optimizer = decisions.method.value, decisions.batch.value, decisions.optimizer.value
    is_adapter = method.train_type != "full"
    use = f"adaptft infer --model {request.model} --adapters ." if is_adapter else "adaptft infer --model ."
    rows = [
        ("Base model", request.model),
        ("Method", f"{method.train_type}, rank {method.lora_rank}" if is_adapter else "full fine-tuning"),
        ("Data", ", ".join(request.dataset) or "adaptft's built-in rows"),
        ("Sequences a step", f"{batch.global_batch_size} of up to {batch.max_length} tokens"),
        ("Optimizer", f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, {optimizer.lr_scheduler_type}"),
        ("Steps", str(len(report.steps))),
        ("Tokens", str(report.num_tokens)),
        ("Held-out loss", f"{_loss(report.initial_eval_loss)} before, {_loss(report.final_eval_loss)} after"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    name = request.model.rstrip("/").rsplit("/", 1)[-1]
    return "\n".join(
        (
            f"---\nlibrary_name: {'peft' if is_adapter else 'transformers'}\nbase_model: {request.model}\n---\n",
            f"# {name}, fine-tuned\n\n| | |\n|---|---|\n{table}\n",
            f"`plan.json` says why it was trained so, `report.json` how it went.\n\n    {use}\n",
        )
    )


def _loss(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4f}"
