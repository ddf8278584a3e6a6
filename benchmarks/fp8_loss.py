"""Does FP8 learn as well as 16 bit? Loss on held-out rows after the same steps, by real weights on real rows.

python benchmarks/fp8_loss.py MODEL DATASET HELD_OUT [--steps 300] [--seeds 0 1 2] [--ways lora qlora full]

MODEL is a folder with real weights (SmolLM2-135M, and what widen.py makes of it), DATASET and HELD_OUT as `adaptft
train --dataset` takes them. Both runs of a pair see the same rows in the same order, from the same start. Held-out
rows are scored twice: as the run itself does it, in FP8 where it computes in FP8, and as `adaptft eval` scores the
result, in 16 bit on the original weights, which is what is served. Each run is written when it is done, and the next
call goes on after it: --minutes says when a call begins no other one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from product import Deadline, Failed, Record, adaptft, finish, measure_missing, table, train

# way: options of both runs of a pair; the second gets --fp8 true
WAYS: dict[str, tuple[str, ...]] = {
    "lora": ("--train_type", "lora"),
    "qlora": ("--train_type", "qlora"),
    "full": ("--train_type", "full", "--torch_dtype", "bfloat16"),
}
FP8 = {"bf16": "false", "fp8": "true"}
GROUP = ("model", "dataset", "held_out", "steps", "batch", "way")
LOSSES = {"trained": "eval_loss", "served": "served_loss"}
"""Held-out losses of a run, as it is trained and as its result is served."""
ALLOWED = 0.01
"""Relative difference of the losses that counts as none."""


def main() -> None:
    options = read_options()
    record, deadline = Record.open(options.out, options.date), Deadline(options.minutes)
    failures = measure_missing(record, deadline, _wanted(options), lambda wanted: run(wanted, options), _line)
    record.content["summary"] = summary = summarise(record.part("runs", []))
    record.save()
    print(as_table(summary) if summary else "No pair of runs is complete yet.")
    finish(failures, deadline)


def read_options() -> argparse.Namespace:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("held_out")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/fp8_loss-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def _wanted(options: argparse.Namespace) -> list[dict[str, Any]]:
    same = {
        "model": options.model.name, "dataset": Path(options.dataset).name,
        "held_out": Path(options.held_out).name, "steps": options.steps, "batch": options.batch,
    }  # fmt: skip
    return [
        {**same, "way": way, "seed": seed, "compute": compute}
        for way in options.ways
        for seed in options.seeds
        for compute in FP8
    ]


def _line(run: dict[str, Any]) -> str:
    key = " ".join(str(run[name]) for name in (*GROUP, "seed", "compute"))
    return f"{key}: held-out loss {run['eval_loss']:.4f}, as served {run['served_loss']:.4f}"


def run(wanted: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "run"
        done = train(
            "--model", str(options.model), "--dataset", options.dataset, "--val_dataset", options.held_out,
            "--max_steps", str(options.steps), "--eval_steps", str(options.steps), "--packing", "true",
            "--per_device_train_batch_size", str(options.batch), "--gradient_accumulation_steps", "1",
            "--seed", str(wanted["seed"]), "--save_strategy", "no", "--report_to", "none", *WAYS[wanted["way"]],
            "--fp8", FP8[wanted["compute"]], folder=result,
        )  # fmt: skip
        served = served_loss(result, wanted["way"], options)
    report, planned = done.report, done.decisions
    if (planned["precision"]["compute"] == "fp8") != (wanted["compute"] == "fp8"):
        raise Failed(f"the plan computes in {planned['precision']['compute']}")
    return {
        "eval_loss": report["final_eval_loss"],
        "served_loss": served,
        "initial_eval_loss": report["initial_eval_loss"],
        "train_losses": [step["loss"] for step in report["steps"]],
        "tokens_per_second": report["tokens_per_second"],
        "base_storage": planned["method"]["base_storage"],
        "max_length": planned["batch"]["max_length"],
        "global_batch_size": planned["batch"]["global_batch_size"],
    }


def served_loss(result: Path, way: str, options: argparse.Namespace) -> float:
    """Nats a trained token of the held-out rows, by the original weights in 16 bit and what was trained."""
    subject = ("--model", str(result)) if way == "full" else ("--model", str(options.model), "--adapters", str(result))
    scores = json.loads(adaptft("eval", *subject, "--dataset", options.held_out, "--json"))["scores"]
    return float(scores[-1]["loss"])


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two rows for each group of runs that differ in seed and compute type only; seeds count where both runs are."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in GROUP), []).append(run)
    rows = [
        dict(zip(GROUP, group, strict=True)) | _compared(members, loss)
        for group, members in groups.items()
        for loss in LOSSES
    ]
    return [row for row in rows if row["differences"]]


def _compared(runs: list[dict[str, Any]], loss: str) -> dict[str, Any]:
    losses = {(run["seed"], run["compute"]): run[LOSSES[loss]] for run in runs}
    seeds = [seed for seed, compute in losses if compute == "bf16" and (seed, "fp8") in losses]
    differences = [losses[seed, "fp8"] / losses[seed, "bf16"] - 1 for seed in seeds]
    means = {compute: mean(losses[seed, compute] for seed in seeds) for compute in FP8 if seeds}
    within = all(abs(difference) <= ALLOWED for difference in differences)
    initial = mean(run["initial_eval_loss"] for run in runs)
    return {
        "loss": loss,
        "seeds": len(seeds),
        "initial": initial,
        **means,
        "differences": differences,
        "within": within,
    }


def as_table(rows: list[dict[str, Any]]) -> str:
    return table(
        [
            {
                "model": row["model"],
                "way": row["way"],
                "loss as": row["loss"],
                "steps": str(row["steps"]),
                "seeds": str(row["seeds"]),
                "loss at first": f"{row['initial']:.4f}",
                "bf16": f"{row['bf16']:.4f}",
                "fp8": f"{row['fp8']:.4f}",
                "difference of each seed": " ".join(f"{difference:+.2%}" for difference in row["differences"]),
                f"within {ALLOWED:.0%}": "yes" if row["within"] else "NO",
            }
            for row in rows
        ]
    )


if __name__ == "__main__":
    main()
