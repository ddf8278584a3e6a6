"""The result folder: weights, tokenizer and template, plan, report, model card and the description of it all."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from adaptft import __version__, data, models
from adaptft.accuracy import history_file, record_run
from adaptft.artifacts import Artifact, plan_text, write_artifact
from adaptft.plans import TrainPlan
from adaptft.records import write_json
from adaptft.reports import RunReport
from adaptft.training import folders
from adaptft.training.model_card import model_card

PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes", "torchao", "datasets")
PARTIAL, REPORT = folders.PARTIAL, folders.REPORT


def write_result(
    plan: TrainPlan, report: RunReport, model: Any, base: Any, output_dir: Path, *, weights: Any = None
) -> RunReport:
    """Write the trained ``model`` (adapter or whole) and all that belongs to it into ``output_dir``.

    Everything is written beside first and moved in when it is whole.

    Args:
        base: the ``LocalModel`` that was trained on.
        weights: by name, where ``model`` holds a part of them only.

    Returns:
        The report as written: with what was changed in the companions, such as stop tokens that were added.
    """
    partial = output_dir / folders.PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    model.save_pretrained(partial, state_dict=weights)
    changes = models.save_companions(base.path, partial)
    data.write_rendering(partial, models.load_tokenizer(partial))
    report = replace(report, notes=(*report.notes, *changes))
    write_json(partial / folders.PLAN, plan_text(plan))
    write_json(partial / folders.REPORT, report)
    (partial / "README.md").write_text(model_card(plan, report), encoding="utf-8")
    write_artifact(partial, describe(plan, base))
    folders.publish(partial, output_dir)
    _remember(plan, report)
    return report


def _remember(plan: TrainPlan, report: RunReport) -> None:
    """Add the run to the user's history; the result is whole by now, and a history that is not to be had says so."""
    try:
        record_run(plan, report, date.today().isoformat())
    except OSError as cause:
        print(f"The run is not in {history_file()} (adaptft plan --accuracy): {cause.strerror}.", file=sys.stderr)


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
        dataset=request.dataset or (str(data.builtin("train")),),
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
