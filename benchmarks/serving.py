"""Exports served by vLLM and asked by the openai client: tokens a second of each format, alone and under load.

python benchmarks/serving.py MODEL --vllm-python PYTHON [--formats merged fp8 awq gptq] [--work DIR]

MODEL is a folder with weights. What is missing is made first, under --work: an export in each format, and two adapters
of two steps. Then `adaptft serve` starts each export, and the model with both adapters at once; each is asked by one
and by many requests at a time, and held against training's own tokens and answers (`adaptft serve --check`). The
results are written after each measurement, and the next call goes on after it: --minutes says when a call begins no
other one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from product import TAIL, Deadline, Failed, Record, adaptft, finish, table

FORMATS = ("merged", "fp8", "fp8-block", "int8", "awq", "gptq")
ADAPTERS = "two adapters"
CALIBRATION = ("--quant_n_samples", "32", "--max_length", "512")
LOAD = Path(__file__).with_name("serving_load.py")


@dataclass(frozen=True, slots=True)
class Served:
    """A running `adaptft serve`: its address, its names, and how long it took to answer."""

    url: str
    port: int
    names: tuple[str, ...]
    seconds_to_start: float


def main() -> None:
    options = read_options()
    record, deadline = Record.open(options.out, options.date), Deadline(options.minutes)
    failures = measure(options, record, deadline)
    rows = [line(what, load) for what in record.part("served", []) for load in what["loads"]]
    print(table(rows) if rows else "Nothing is measured yet.")
    finish(failures, deadline)


def read_options() -> argparse.Namespace:
    today = datetime.date.today().isoformat()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--vllm-python", required=True, help="an interpreter that has vLLM and openai")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=["merged", "fp8", "awq", "gptq"])
    parser.add_argument("--no-adapters", action="store_true", help="leave the model with two adapters out")
    parser.add_argument("--no-check", action="store_true", help="leave adaptft serve --check out (a CPU's work)")
    parser.add_argument("--work", type=Path, default=Path("serving-work"), help="where exports and adapters are kept")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/serving-{today}.json"))
    parser.set_defaults(date=today)
    return parser.parse_args()


def measure(options: argparse.Namespace, record: Record, deadline: Deadline) -> list[str]:
    """Every export that is not whole in the record yet, then the adapters; -> what went wrong."""
    served, failures = record.part("served", []), []
    for what in [*options.formats, *([] if options.no_adapters else [ADAPTERS])]:
        wanted = {"model": options.model.name, "what": what}
        same = [found for found in served if found.items() >= wanted.items()]
        if same and len(same[0]["loads"]) >= len(options.concurrency):
            continue
        if deadline.has_passed:
            break
        served[:] = [found for found in served if found not in same]
        entry: dict[str, Any] = {**wanted, "seconds_to_start": None, "names": (), "loads": [], "check": None}
        try:
            for part in serve_and_ask(what, options):
                entry |= part
                served[:] = [found for found in served if found["what"] != what or found["model"] != entry["model"]]
                served.append(entry)
                record.save()
        except Failed as failure:
            failures.append(f"{what}: {failure}")
    return failures


def serve_and_ask(what: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start the endpoint, ask it, check it, end it; gives each part of the result as soon as it is known."""
    words = adapter_words(options) if what == ADAPTERS else [str(exported(what, options))]
    words += ["--vllm-python", options.vllm_python, "--max_model_len", str(options.max_model_len)]
    with serving(words) as endpoint:
        names = endpoint.names[:2] if what == ADAPTERS else endpoint.names[:1]
        yield {"seconds_to_start": round(endpoint.seconds_to_start, 1), "names": names}
        loads: list[dict[str, Any]] = []
        for concurrency in options.concurrency:
            loads = [*loads, ask(endpoint, names, concurrency, options)]
            print(f"{what}: {concurrency} at a time, {loads[-1]['tokens_per_second']} tokens/s", flush=True)
            yield {"loads": loads}
        if not options.no_check:
            yield {"check": check(words, endpoint)}


def exported(format: str, options: argparse.Namespace) -> Path:
    """The export in ``format``; made where it is not there yet."""
    folder: Path = options.work / f"{options.model.name}-{format}"
    if not folder.exists():
        print(f"exporting {format}", flush=True)
        calibration = CALIBRATION if format in ("awq", "gptq") else ()
        words = ("--model", str(options.model), "--output_dir", str(folder), "--accept_loss", "true", *calibration)
        adaptft("export", "--format", format, *words)
    return folder


def adapter_words(options: argparse.Namespace) -> list[str]:
    """The model and two adapters of two steps at other learning rates; made where they are not there yet."""
    folders = {name: options.work / f"{options.model.name}-{name}" for name in ("one", "two")}
    for rate, folder in zip(("1e-4", "1e-3"), folders.values(), strict=True):
        if not folder.exists():
            print(f"training {folder.name}", flush=True)
            adaptft(
                "train", "--model", str(options.model), "--train_type", "lora", "--max_steps", "2",
                "--max_length", "512", "--global_batch_size", "2", "--learning_rate", rate,
                "--eval_strategy", "no", "--output_dir", str(folder),
            )  # fmt: skip
    return [str(options.model), "--adapters", *(f"{name}={folder}" for name, folder in folders.items())]


@contextmanager
def serving(words: list[str]) -> Iterator[Served]:
    """`adaptft serve WORDS` on a free port, ended by SIGTERM.

    Raises:
        Failed: it does not start, or does not end with status 0.
    """
    port, begin = free_port(), time.monotonic()
    command = [sys.executable, "-m", "adaptft", "serve", *words, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            ready = process.stdout.readline() if process.stdout else ""
            if not ready.startswith("Ready:"):
                process.wait()
                reader.join(timeout=5)
                raise Failed(f"adaptft serve {' '.join(words)} did not start:\n{''.join(log)[-TAIL:]}")
            names = ready.partition(" serves ")[2].partition(" (")[0].split(", ")
            yield Served(f"http://127.0.0.1:{port}/v1", port, tuple(names), time.monotonic() - begin)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    if process.returncode:
        raise Failed(f"adaptft serve ended with status {process.returncode}:\n{''.join(log)[-TAIL:]}")


def ask(endpoint: Served, names: tuple[str, ...], concurrency: int, options: argparse.Namespace) -> dict[str, Any]:
    """One load, by the openai client in vLLM's own environment."""
    requests = 4 if concurrency == 1 else 2 * concurrency
    command = [options.vllm_python, str(LOAD), endpoint.url, *names, "--concurrency", str(concurrency)]
    command += ["--requests", str(requests), "--tokens", str(options.tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{concurrency} requests at a time:\n{done.stderr[-TAIL:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(words: list[str], endpoint: Served) -> dict[str, Any]:
    """What `adaptft serve --check` says of the running endpoint; a difference is a result, not a failure."""
    try:
        said = adaptft("serve", *words, "--check", "--port", str(endpoint.port))
    except Failed as failure:
        return {"passes": False, "said": str(failure).splitlines()[-2:]}
    return {"passes": True, "said": said.splitlines()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def line(what: dict[str, Any], load: dict[str, Any]) -> dict[str, str]:
    return {
        "model": what["model"],
        "served": what["what"],
        "at a time": str(load["concurrency"]),
        "tokens/s": f"{load['tokens_per_second']:,.0f}",
        "first token": f"{load['median_first_token_seconds']:.3f} s",
        "request": f"{load['median_request_seconds']:.2f} s",
        "start": f"{what['seconds_to_start']:.0f} s",
        "check": "-" if what["check"] is None else "passes" if what["check"]["passes"] else "differs",
    }


if __name__ == "__main__":
    main()
