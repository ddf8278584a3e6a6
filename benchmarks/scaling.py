"""One rank against several: tokens a second as measured, and as each plan predicted.

python benchmarks/scaling.py MODEL DATASET [--ranks 2] [--jobs lora qlora full] [--strategy fsdp2] [--sequences 8]
    [--out benchmarks/results/scaling-DATE.json]

Every rank takes the same number of sequences a step, however many ranks there are. The policy chooses how GPUs share
the work, unless --strategy says it. On a machine without GPUs the ranks share its cores: that shows that everything
runs, and nothing about speed. Each measurement is written when it is done; a table comes last.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from product import GIB, Record, table

from adaptft import data, models, plan_training, probe, shapes, training
from adaptft.artifacts import plan_text
from adaptft.errors import TrainingError
from adaptft.facts import Machine
from adaptft.plans import AdapterKernels, Batch, Decisions, Placement, TrainPlan
from adaptft.records import read_json, to_dict
from adaptft.reports import RunReport
from adaptft.requests import TrainRequest

JOBS: dict[str, dict[str, Any]] = {
    "lora": {"train_type": "lora", "fp8": False},
    "qlora": {"train_type": "qlora"},
    "full": {"train_type": "full", "torch_dtype": "bfloat16"},
}
RUN_PLAN = "--run-plan"


def main() -> None:
    if sys.argv[1:2] == [RUN_PLAN]:
        run_plan(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    options = read_options()
    record = Record.open(options.out, datetime.date.today().isoformat())
    runs = record.part("runs", {})
    for job in options.jobs:
        for ranks in (1, options.ranks):
            runs[f"{job}-{ranks}"] = measure(planned(job, ranks, options))
            record.save()
    print(table([row(job, ranks, runs) for job in options.jobs for ranks in (1, options.ranks)]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--strategy", choices=("ddp", "zero2", "fsdp2"))
    parser.add_argument("--sequences", type=int, default=8, help="of each rank in a step")
    parser.add_argument("--max_length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/scaling-{datetime.date.today()}.json"))
    return parser.parse_args()


def planned(job: str, ranks: int, options: argparse.Namespace) -> TrainPlan:
    """The plan of ``job`` for ``ranks`` of this machine."""
    machine = probe()
    on_gpus = {"num_gpus": ranks} if machine.gpus else {}
    sequences = options.sequences * (ranks if machine.gpus else 1)
    request = TrainRequest(
        model=options.model, dataset=(options.dataset,), max_steps=options.steps, save_strategy="no", packing=True,
        split_dataset_ratio=0.0, eval_strategy="no", max_length=options.max_length, report_to=("none",),
        global_batch_size=sequences, **on_gpus, **JOBS[job],
    )  # fmt: skip
    rows = data.tokenize(data.training_settings(request, request.dataset), models.load_tokenizer(Path(options.model)))
    shape = shapes.model_shape(models.read_config(options.model), Path(options.model).name)
    plan = plan_training(machine, shape, rows.shape, request)
    return arranged(plan, machine, ranks, options.strategy) if ranks > 1 else plan


def arranged(plan: TrainPlan, machine: Machine, ranks: int, strategy: str | None) -> TrainPlan:
    """``plan`` with ``strategy``, and for ranks on the CPU, of which no policy speaks."""
    decisions = plan.decisions
    if not machine.gpus:
        place = Placement(strategy=strategy or "ddp", gpu_indices=tuple(range(ranks)))  # type: ignore[arg-type]
        each = decisions.batch.value
        batch: Batch = dataclasses.replace(
            each, data_parallel_size=ranks, global_batch_size=each.global_batch_size * ranks
        )
        decisions = _with(decisions, placement=place, batch=batch)
    elif strategy is not None:
        decisions = _with(decisions, placement=dataclasses.replace(decisions.placement.value, strategy=strategy))
    if decisions.placement.value.is_sharded:
        decisions = _with(decisions, adapters=AdapterKernels(fused=False))
    return dataclasses.replace(plan, decisions=decisions)


def _with(decisions: Decisions, **values: Any) -> Decisions:
    changed = {
        name: dataclasses.replace(getattr(decisions, name), value=value, reason="the benchmark's")
        for name, value in values.items()
    }
    return dataclasses.replace(decisions, **changed)


def measure(plan: TrainPlan) -> dict[str, Any]:
    """Carry ``plan`` out in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        plan_file, output = Path(folder) / "plan.json", Path(folder) / "run"
        plan_file.write_text(plan_text(plan))
        subprocess.run([sys.executable, __file__, RUN_PLAN, str(plan_file), str(output)], check=True)
        report = read_json(RunReport, output / "report.json", error=TrainingError, what="report", fix="")
    values = {field.name: getattr(plan.decisions, field.name).value for field in dataclasses.fields(plan.decisions)}
    decisions = {name: to_dict(value) for name, value in values.items()}
    return {"decisions": decisions, "speed": to_dict(plan.speed) if plan.speed else None, "report": to_dict(report)}


def run_plan(plan_file: Path, output: Path) -> None:
    training.train(read_json(TrainPlan, plan_file, error=TrainingError, what="plan", fix=""), output)


def row(job: str, ranks: int, runs: dict[str, Any]) -> dict[str, str]:
    """A line of the table; efficiency is speed over as many times the speed of one rank."""
    one, found = runs[f"{job}-1"], runs[f"{job}-{ranks}"]
    measured, predicted = tokens_per_second(found), (found["speed"] or {}).get("tokens_per_second", 0.0)
    alone = (one["speed"] or {}).get("tokens_per_second", 0.0)
    steps = found["report"]["steps"]
    return {
        "job": job,
        "ranks": str(ranks),
        "strategy": found["decisions"]["placement"]["strategy"],
        "tokens/s": f"{measured:,.0f}",
        "plan": f"{predicted:,.0f}" if predicted else "-",
        "efficiency": f"{measured / ranks / tokens_per_second(one):.1%}",
        "plan's": f"{predicted / ranks / alone:.1%}" if alone else "-",
        "peak GiB": f"{found['report']['peak_memory']['measured'] / GIB:.2f}",
        "loss": f"{steps[0]['loss']:.3f} -> {steps[-1]['loss']:.3f}",
    }


def tokens_per_second(run: dict[str, Any]) -> float:
    return float(run["report"]["tokens_per_second"])


if __name__ == "__main__":
    main()
