"""Does FP8 learn as well as 16 bit? Loss on held-out rows after the same steps, by real weights on real rows.

python benchmarks/fp8_loss.py MODEL DATASET [--steps 300] [--seeds 0 1 2] [--ways lora qlora full]

MODEL is a folder with real weights (SmolLM2-135M, and what widen.py makes of it), DATASET as `adaptft train --dataset`
takes it. Both runs of a pair see the same rows in the same order, from the same start. Each run is written when it is
done, and the next call goes on after it: --minutes says when a call begins no other one.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from statistics import mean
from typing import Any

from product import Deadline, Failed, Record, finish, measure_missing, table, train

# way: options of both runs of a pair; the second gets --fp8 true
WAYS: dict[str, tuple[str, ...]] = {
    "lora": ("--train_type", "lora"),
    "qlora": ("--train_type", "qlora"),
    "full": ("--train_type", "full", "--torch_dtype", "bfloat16"),
}
FP8 = {"bf16": "false", "fp8": "true"}
GROUP = ("model", "dataset", "steps", "way")
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
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/fp8_loss-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def _wanted(options: argparse.Namespace) -> list[dict[str, Any]]:
    same = {"model": options.model.name, "dataset": Path(options.dataset).name, "steps": options.steps}
    return [
        {**same, "way": way, "seed": seed, "compute": compute}
        for way in options.ways
        for seed in options.seeds
        for compute in FP8
    ]


def _line(run: dict[str, Any]) -> str:
    key = {name: run[name] for name in (*GROUP, "seed", "compute")}
    return f"{key}: held-out loss {run['eval_loss']:.4f}"


def run(wanted: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    done = train(
        "--model", str(options.model), "--dataset", options.dataset, "--max_steps", str(options.steps),
        "--seed", str(wanted["seed"]), "--save_strategy", "no", "--eval_steps", str(options.steps),
        "--split_dataset_ratio", "0.05", "--report_to", "none", *WAYS[wanted["way"]],
        "--fp8", FP8[wanted["compute"]],
    )  # fmt: skip
    report, planned = done.report, done.decisions
    if (planned["precision"]["compute"] == "fp8") != (wanted["compute"] == "fp8"):
        raise Failed(f"the plan computes in {planned['precision']['compute']}")
    return {
        "eval_loss": report["final_eval_loss"],
        "initial_eval_loss": report["initial_eval_loss"],
        "train_losses": [step["loss"] for step in report["steps"]],
        "tokens_per_second": report["tokens_per_second"],
        "base_storage": planned["method"]["base_storage"],
        "max_length": planned["batch"]["max_length"],
        "global_batch_size": planned["batch"]["global_batch_size"],
    }


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group of runs that differ in seed and compute type only; seeds count where both runs are there."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in GROUP), []).append(run)
    rows = [dict(zip(GROUP, group, strict=True)) | _compared(members) for group, members in groups.items()]
    return [row for row in rows if row["differences"]]


def _compared(runs: list[dict[str, Any]]) -> dict[str, Any]:
    losses = {(run["seed"], run["compute"]): run["eval_loss"] for run in runs}
    seeds = [seed for seed, compute in losses if compute == "bf16" and (seed, "fp8") in losses]
    differences = [losses[seed, "fp8"] / losses[seed, "bf16"] - 1 for seed in seeds]
    means = {compute: mean(losses[seed, compute] for seed in seeds) for compute in FP8 if seeds}
    within = all(abs(difference) <= ALLOWED for difference in differences)
    initial = mean(run["initial_eval_loss"] for run in runs)
    return {"seeds": len(seeds), "initial": initial, **means, "differences": differences, "within": within}


def as_table(rows: list[dict[str, Any]]) -> str:
    return table(
        [
            {
                "model": row["model"],
                "way": row["way"],
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
