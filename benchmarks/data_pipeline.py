"""A million rows of 256 tokens: read, rendered, tokenised, packed, then read again as training reads them.

python benchmarks/data_pipeline.py MODEL_FOLDER TEXT_FILE... [--rows 1000000] [--folder SCRATCH] [--out FILE.json]

Rows are prompt and completion, cut out of the texts at random, and go through the model's chat template. Each stage is
a process of its own: the first start, the second start (from the cache), and an epoch over the packs. Memory is
sampled over the whole tree of processes: RSS counts shared and memory-mapped pages in every process, PSS once.
Needs some 6.5 GB of disk for a million rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from adaptft import data

ROW_TOKENS = 256
MAX_LENGTH = 2048
SAMPLED_SECONDS = 2  # looking at memory stops the processes for a moment, and takes one of the cores


def main() -> None:
    if sys.argv[1] in STAGES:
        print(json.dumps(STAGES[sys.argv[1]](*sys.argv[2:])))
        return
    options = read_options()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        rows = Path(scratch) / "rows.jsonl"
        write_rows(rows, options)
        record: dict[str, Any] = {
            "date": datetime.date.today().isoformat(), "cores": data_cores(), "python": platform.python_version(),
            "model": Path(options.model).name, "texts": [Path(name).name for name in options.texts],
            "rows": options.rows, "file_bytes": rows.stat().st_size, "stages": {},
        }  # fmt: skip
        for stage in STAGES:
            record["stages"][stage] = measure(stage, options.model, str(rows), scratch)
            print(stage, json.dumps(record["stages"][stage]), flush=True)
        record["cache_bytes"] = sum(file.stat().st_size for file in Path(scratch, "cache").rglob("*.*"))
    options.out.write_text(json.dumps(record, indent=1) + "\n")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/data-{datetime.date.today()}.json"))
    return parser.parse_args()


def data_cores() -> int:
    return len(os.sched_getaffinity(0))


def write_rows(path: Path, options: argparse.Namespace) -> None:
    """Pieces of the texts that have some 256 tokens with the template around them, a quarter of them the prompt."""
    tokenizer = load_tokenizer(options.model)
    text = "\n".join(Path(name).read_text(encoding="utf-8") for name in options.texts)
    starts = [start for start, _ in tokenizer(text, return_offsets_mapping=True)["offset_mapping"]]
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}])
    length = ROW_TOKENS - len(empty["input_ids"])
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as stream:
        for _ in range(options.rows):
            first = draw.randrange(len(starts) - length)
            begin, middle, end = (starts[first + part] for part in (0, length // 4, length))
            stream.write(json.dumps({"prompt": text[begin:middle], "completion": text[middle:end]}) + "\n")


def load_tokenizer(model: str) -> Any:
    from adaptft import models

    return models.load_tokenizer(Path(model))


def measure(stage: str, *words: str) -> dict[str, Any]:
    """One stage in a process of its own: what it says, its seconds by the clock and by the cores, its peak memory."""
    environment = os.environ | {"ADAPTFT_HOME": str(Path(words[-1]) / "cache")}
    command = [sys.executable, __file__, stage, *words]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    peaks: dict[str, int] = {"peak_rss_bytes": 0, "peak_pss_bytes": 0}
    watcher = threading.Thread(target=watch, args=(psutil.Process(child.pid), peaks), daemon=True)
    watcher.start()
    said, _ = child.communicate()
    if child.returncode:
        sys.exit(f"{stage}: status {child.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    process = {"process_seconds": round(time.monotonic() - began, 2), "process_cpu_seconds": round(cpu, 2)}
    return json.loads(said) | process | peaks


def watch(root: psutil.Process, peaks: dict[str, int]) -> None:
    while root.is_running():
        try:
            tree = [process.memory_full_info() for process in (root, *root.children(recursive=True))]
        except psutil.Error:
            continue
        peaks["peak_rss_bytes"] = max(peaks["peak_rss_bytes"], sum(memory.rss for memory in tree))
        peaks["peak_pss_bytes"] = max(peaks["peak_pss_bytes"], sum(memory.pss for memory in tree))
        time.sleep(SAMPLED_SECONDS)


def start(model: str, rows: str, _scratch: str) -> dict[str, Any]:
    """Everything between the files and the packs, as ``adaptft train`` does it."""
    tokenizer = load_tokenizer(model)
    began, cpu = time.monotonic(), os.times()
    tokenized = data.tokenize(data.DataSettings(sources=(rows,)), tokenizer)
    read = time.monotonic()
    packs = pack(tokenized)
    done, after = time.monotonic(), os.times()
    return {
        "from_cache": tokenized.report.from_cache, "tokens": tokenized.shape.num_tokens, "packs": len(packs),
        "tokenise_seconds": round(read - began, 2), "pack_seconds": round(done - read, 2),
        "tokens_per_second": round(tokenized.shape.num_tokens / (done - began)),
        "tokens_per_cpu_second": round(tokenized.shape.num_tokens / (sum(after[:4]) - sum(cpu[:4]))),
    }  # fmt: skip


def pack(tokenized: data.TokenizedData) -> Any:
    fitted, _ = data.fit_rows(tokenized.rows, MAX_LENGTH)
    return data.pack(fitted, MAX_LENGTH, seed=42)


def epoch(model: str, rows: str, _scratch: str) -> dict[str, Any]:
    """Every pack once in random order, as the trainer's loader takes them; private memory before and after."""
    from adaptft.training.batches import MicroBatches, Rows

    packs = Rows(pack(data.tokenize(data.DataSettings(sources=(rows,)), load_tokenizer(model))))
    before, began, tokens = private_bytes(), time.monotonic(), 0
    for batch in MicroBatches(len(packs), 1, seed=0):
        tokens += sum(len(packs[index]["input_ids"]) for index in batch)
    seconds = time.monotonic() - began
    return {
        "tokens": tokens, "tokens_per_second": round(tokens / seconds), "private_bytes_before": before,
        "private_bytes_after": private_bytes(),
    }  # fmt: skip


def private_bytes() -> int:
    """Memory of this process that is not pages of files."""
    return int(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("RssAnon"))) * 1024


STAGES = {"first": start, "second": start, "epoch": epoch}

if __name__ == "__main__":
    main()
