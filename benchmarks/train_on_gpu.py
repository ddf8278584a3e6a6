"""Predicted against measured: `adaptft train` in every way on one model, as a user would type it.

python benchmarks/train_on_gpu.py MODEL_FOLDER DATASET [--out benchmarks/results/train-DATE.json] [--steps 14]

Batch, precision and checkpointing are left to the plan. Prints a table and writes the runs' plans (decisions,
memory, speed) and reports as one JSON file. Peers are compared in speed.py.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from product import GIB, Record, train

RUNS: dict[str, tuple[str, ...]] = {
    "lora": ("--train_type", "lora"),
    "lora-bf16": ("--train_type", "lora", "--fp8", "false"),
    "qlora": ("--train_type", "qlora"),
    "full": ("--train_type", "full"),
    "full-bf16": ("--train_type", "full", "--torch_dtype", "bfloat16"),
}


def main() -> None:
    options = read_options()
    record = Record.open(options.out, datetime.date.today().isoformat())
    runs = record.part("runs", {})
    for name in options.runs:
        runs[name] = run(name, options)
        print(line(name, runs[name]), flush=True)
        record.save()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("dataset")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/train-{datetime.date.today()}.json"))
    return parser.parse_args()


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    done = train(
        "--model", options.model, "--dataset", options.dataset, "--max_steps", str(options.steps),
        "--save_strategy", "no", "--split_dataset_ratio", "0.005", *RUNS[name],
    )  # fmt: skip
    plan = done.plan
    return {"decisions": done.decisions, "memory": plan["memory"], "speed": plan["speed"], "report": done.report}


def line(name: str, result: dict[str, Any]) -> str:
    report, memory = result["report"], result["report"]["peak_memory"]
    step = {name: float("nan") if value is None else value for name, value in report["step_seconds"].items()}
    return (
        f"{name:10} {report['tokens_per_second']:7.0f} tokens/s   peak {memory['measured'] / GIB:6.2f} GiB "
        f"(plan {memory['predicted'] / GIB:6.2f}, {memory['error']:+.1%})   step {step['measured']:.3f} s "
        f"(plan {step['predicted']:.3f}, {step['error']:+.1%})   first {report['first_step_seconds']:.1f} s   "
        f"input wait {report['input_wait_share']:.2%}   loss {report['steps'][0]['loss']:.3f} -> "
        f"{report['steps'][-1]['loss']:.3f}"
    )


if __name__ == "__main__":
    main()
