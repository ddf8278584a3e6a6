"""What each export format loses of a real model: perplexity, KL, equal top tokens and greedy answers by the gate.

python benchmarks/export_quality.py MODEL DATASET [--formats fp8 awq ...] [--adapters DIR]

MODEL is a folder with real weights (SmolLM2-135M), DATASET as `adaptft export --dataset` takes it: a part of its rows
calibrates, others are compared on. Each format is written to the results when it is done, and the next call goes on
after it: --minutes says when a call begins no other one. Beside them stand figures that others published for the same
methods, with where they are from.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
from pathlib import Path
from typing import Any

from product import Deadline, Record, adaptft, finish, measure_missing, table

FORMATS = ("merged", "fp8", "fp8-block", "int8", "gptq", "awq")
GROUP = ("model", "dataset", "adapters", "rows", "format")

# method, model, perplexity in 16 bit, perplexity after; all on WikiText-2, 4 bits in groups of 128 unless said
PUBLISHED: tuple[dict[str, Any], ...] = (
    {"method": "AWQ", "model": "Llama-2-7B", "before": 5.47, "after": 5.60, "source": "arXiv 2306.00978, table 4"},
    {"method": "GPTQ", "model": "Llama-2-7B", "before": 5.47, "after": 5.69, "source": "arXiv 2306.00978, table 4"},
    {
        "method": "AWQ (torchao)", "model": "Llama-3-8B-Instruct", "before": 10.936, "after": 11.409,
        "source": "pytorch/ao#1036",
    },
    {
        "method": "GPTQ, no groups", "model": "OPT-125M", "before": 27.65, "after": 31.12,
        "source": "GPTQ, arXiv 2210.17323, table 3",
    },
    {
        "method": "rounding, no groups", "model": "OPT-125M", "before": 27.65, "after": 37.28,
        "source": "GPTQ, arXiv 2210.17323, table 3",
    },
)  # fmt: skip


def main() -> None:
    options = read_options()
    record, deadline = Record.open(options.out, options.date), Deadline(options.minutes)
    record.content["published"] = [row | {"rise": _rise(row["before"], row["after"])} for row in PUBLISHED]
    wanted = [dict(zip(GROUP, _group(options, format), strict=True)) for format in options.formats]
    failures = measure_missing(record, deadline, wanted, lambda key: exported(options, key["format"]), _line)
    runs = record.part("runs", [])
    print(as_table(runs) if runs else "Nothing is measured yet.")
    finish(failures, deadline)


def read_options() -> argparse.Namespace:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("--adapters", type=Path, help="compare with this adapter on the model, not the bare model")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rows", type=int, help="calibration rows; default: the plan's")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/export-quality-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def exported(options: argparse.Namespace, format: str) -> dict[str, Any]:
    """One export, kept whatever it loses, and what its report says of it."""
    words = ["--model", str(options.model), "--dataset", options.dataset, "--accept_loss", "true"]
    words += ["--adapters", str(options.adapters)] if options.adapters else []
    words += ["--quant_n_samples", str(options.rows)] if options.rows and format in ("awq", "gptq") else []
    with tempfile.TemporaryDirectory() as folder:
        adaptft("export", "--format", format, *words, "--output_dir", str(Path(folder) / "export"))
        report = json.loads((Path(folder) / "export" / "report.json").read_text())
        plan = json.loads((Path(folder) / "export" / "plan.json").read_text())
    found = figures(report, plan)
    found["calibration"] = found["calibration"].replace(options.dataset, Path(options.dataset).name)
    return found


def figures(report: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a report, flat."""
    gate, fidelity = report["gate"], report["gate"]["fidelity"]
    before, after = fidelity["source_perplexity"], fidelity["perplexity"]
    return {
        "source_perplexity": before,
        "perplexity": after,
        "rise": _rise(before, after),
        "loss_rise": fidelity["loss"] - fidelity["source_loss"],
        "kl": fidelity["divergence"],
        "top1": fidelity["top1"],
        "tokens": fidelity["num_tokens"],
        "passes": all(line["passes"] for line in gate["lines"]),
        "compute": f"{gate['device']} {plan['compute_dtype']}",
        "bits_per_weight": report["bits_per_weight"],
        "layers": [report["num_quantized_modules"], report["num_linear_modules"]],
        "bytes": [report["source_bytes"], report["exported_bytes"]],
        "group_size": plan["group_size"],
        "calibration": report["calibration"],
        "seconds": round(report["seconds"], 1),
        "peak_host_bytes": report["peak_host_bytes"],
        "answers": gate["answers"],
    }


def as_table(runs: list[dict[str, Any]]) -> str:
    return table([
        {
            "model": run["model"] + (" + adapter" if run["adapters"] else ""), "format": run["format"],
            "ppl before": f"{run['source_perplexity']:.3f}", "after": f"{run['perplexity']:.3f}",
            "rise": f"{run['rise']:+.1%}", "KL": f"{run['kl']:.4f}", "top-1": f"{run['top1']:.1%}",
            "bits": f"{run['bits_per_weight']:.2f}", "gate": "passes" if run["passes"] else "over",
            "s": f"{run['seconds']:.0f}",
        }
        for run in runs
    ])  # fmt: skip


def _line(run: dict[str, Any]) -> str:
    return f"{run['format']}: perplexity {run['perplexity']:.3f}, KL {run['kl']:.4f}"


def _group(options: argparse.Namespace, format: str) -> tuple[Any, ...]:
    rows = options.rows if format in ("awq", "gptq") else None
    adapters = options.adapters.name if options.adapters else None
    return options.model.name, Path(options.dataset).name, adapters, rows, format


def _rise(before: float, after: float) -> float:
    return round(after / before - 1, 4)


if __name__ == "__main__":
    main()
