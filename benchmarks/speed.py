"""Speed on one GPU: `adaptft train` as a user would type it, and other trainers beside it in the same run.

python benchmarks/speed.py MODEL DATA [--peers FOLDER] [--jobs JOB ...] [--out benchmarks/results/speed-DATE.json]

MODEL is a folder, of Qwen2.5-7B's shape for figures that compare; DATA a folder with long.json (every row longer than
2048 tokens) and alpaca.json (some 280 tokens a row). A step is 4 x 2048 tokens; adapters have rank 8 on all linear
layers. Each measurement is written when it is done, and the next call goes on after it: --minutes says when a call
begins no other one. Prints a table; tokens are real ones, without padding.
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers
from product import GIB, Deadline, Failed, Record, finish, table, train

LORA = ("--train_type", "lora", "--lora_rank", "8", "--lora_dropout", "0")
QLORA = ("--train_type", "qlora", *LORA[2:])
FULL = ("--train_type", "full", "--torch_dtype", "bfloat16")
LEAN = ("--gradient_checkpointing", "true")
LEANEST = (*LEAN, "--activation_offloading", "true", "--tiled_mlp", "true")
PEERS = ("unsloth", "llamafactory", "trl", "ms-swift")


@dataclass(frozen=True, slots=True)
class Job:
    """Options of ours, the rows, and which case of which peer is the same job."""

    options: tuple[str, ...]
    cases: tuple[tuple[str, str], ...] = ()
    rows: str = "long.json"
    is_14b: bool = False


def _each(case: str) -> tuple[tuple[str, str], ...]:
    return tuple((peer, case) for peer in PEERS)


JOBS: dict[str, Job] = {
    "lora-bf16": Job((*LORA, "--fp8", "false"), _each("long_fast")),
    "lora-fp8": Job((*LORA, "--fp8", "true"), _each("long_fast")),
    "lora-lean": Job((*LORA, *LEAN), _each("long_default")),
    "lora-packed": Job(LORA, (("llamafactory", "alp_pack"), ("trl", "alp_default")), rows="alpaca.json"),
    "qlora": Job(QLORA, (("unsloth", "long_qlora"),)),
    "qlora-lean": Job((*QLORA, *LEANEST), (("unsloth", "long_qlora"),)),
    "full-fp8": Job((*FULL, "--fp8", "true"), (("llamafactory", "long_full"),)),
    "full-bf16": Job(FULL, (("llamafactory", "long_full"),)),
    "lora-fp8-14b": Job((*LORA, "--fp8", "true"), is_14b=True),
}


def main() -> None:
    options = read_options()
    record, deadline = Record.open(options.out, options.date), Deadline(options.minutes)
    failures = [*measure_ours(options, record, deadline), *measure_peers(options, record, deadline)]
    compare(record)
    record.save()
    print(as_table(record.content["jobs"]) if record.content["jobs"] else "Nothing was measured.")
    finish(failures, deadline)


def read_options() -> argparse.Namespace:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model-14b", type=Path, help="the model of lora-fp8-14b, which is left out without one")
    parser.add_argument("--peers", type=Path, help=f"a folder with {peers.SCRIPT}")
    parser.add_argument("--with-peers", nargs="+", choices=PEERS, default=list(PEERS), help="which of them")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a row (peers take 2048)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after these")
    parser.add_argument("--again", action="store_true", help="measure the named jobs of ours anew")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/speed-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def measure_ours(options: argparse.Namespace, record: Record, deadline: Deadline) -> list[str]:
    """Every named job that is not in the record yet; -> what went wrong."""
    jobs, failures = record.part("jobs", []), []
    for name in options.jobs:
        model = options.model_14b if JOBS[name].is_14b else options.model
        if model is None or (not options.again and any(job["job"] == name for job in jobs)):
            continue
        if deadline.has_passed:
            break
        try:
            result = run(name, model, options)
        except Failed as failure:
            failures.append(f"{name}: {failure}")
            continue
        jobs[:] = [job for job in jobs if job["job"] != name] + [result]
        jobs.sort(key=lambda job: list(JOBS).index(job["job"]))
        record.save()
        print(f"{name}: {result['tokens_per_second']:,.0f} tokens/s", flush=True)
    return failures


def run(name: str, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One job of ours; packing fills a pack with each long row, and with several short ones."""
    job = JOBS[name]
    done = train(
        "--model", str(model), "--dataset", str(options.data / job.rows), "--max_length", str(options.length),
        "--truncation_strategy", "right", "--packing", "true", "--per_device_train_batch_size", "4",
        "--gradient_accumulation_steps", "1", "--learning_rate", "1e-4", "--max_steps", str(options.steps),
        "--save_strategy", "no", "--split_dataset_ratio", "0", "--report_to", "none", *job.options,
    )  # fmt: skip
    report = done.report
    return {
        "job": name,
        "tokens_per_second": report["tokens_per_second"],
        "peak_bytes": int(report["peak_memory"]["measured"]),
        "seconds_to_first_step": done.seconds_to_first_step,
        "step_seconds": report["step_seconds"]["measured"],
        "input_wait_share": report["input_wait_share"],
        "compiled_graphs": report["compiled_graphs"],
        "recompiled_graphs": report["recompiled_graphs"],
        "first_loss": report["steps"][0]["loss"],
        "last_loss": report["steps"][-1]["loss"],
        "options": " ".join(job.options),
        "decisions": done.decisions,
    }


def measure_peers(options: argparse.Namespace, record: Record, deadline: Deadline) -> list[str]:
    """Every case that a named job stands beside and that is not in the record yet; -> what went wrong."""
    if options.peers is None:
        return []
    measured, failures = record.part("peers", {}), []
    wanted = dict.fromkeys(case for name in options.jobs for case in JOBS[name].cases)
    for peer, case in wanted:
        if f"{peer} {case}" in measured or peer not in options.with_peers:
            continue
        if deadline.has_passed:
            break
        try:
            result = peers.run(options.peers, peer, case, model=options.model, data=options.data)
        except Failed as failure:
            failures.append(f"{peer} {case}: {failure}")
            continue
        measured[f"{peer} {case}"] = result
        record.content["versions"] |= peers.version(options.peers, peer)
        record.save()
        print(f"{peer} {case}: {result['tokens_per_second']:,.0f} tokens/s", flush=True)
    return failures


def compare(record: Record) -> None:
    """Put beside each job the fastest peer, and the ratio to each that was measured."""
    measured = record.part("peers", {})
    for job in record.content["jobs"]:
        beside = {
            peer: measured[f"{peer} {case}"] for peer, case in JOBS[job["job"]].cases if f"{peer} {case}" in measured
        }
        speed = job["tokens_per_second"]
        job["ratios"] = {peer: speed / result["tokens_per_second"] for peer, result in beside.items()}
        best = max(beside, key=lambda peer: beside[peer]["tokens_per_second"], default=None)
        result = beside[best] if best else {}
        job |= {
            "peer": best,
            "peer_tokens_per_second": result.get("tokens_per_second"),
            "peer_peak_bytes": result.get("peak_bytes"),
            "peer_seconds_to_first_step": result.get("seconds_to_first_step"),
            "ratio": job["ratios"][best] if best else None,
        }


def as_table(jobs: list[dict[str, Any]]) -> str:
    return table(
        [
            {
                "job": job["job"],
                "tokens/s": _number(job["tokens_per_second"], ",.0f"),
                "GiB": _number(job["peak_bytes"] / GIB, ".1f"),
                "first step s": _number(job["seconds_to_first_step"], ".1f"),
                "peer": job["peer"] or "-",
                "its tokens/s": _number(job["peer_tokens_per_second"], ",.0f"),
                "its GiB": _number(job["peer_peak_bytes"] and job["peer_peak_bytes"] / GIB, ".1f"),
                "its first step s": _number(job["peer_seconds_to_first_step"], ".1f"),
                "ratio": _number(job["ratio"], ".2f"),
                "to each": ", ".join(f"{peer} {ratio:.2f}" for peer, ratio in job["ratios"].items()) or "-",
            }
            for job in jobs
        ]
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
