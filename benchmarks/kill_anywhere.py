"""SIGKILL at random moments of a run, saves included: does it go on as if nothing had happened?

python benchmarks/kill_anywhere.py MODEL_FOLDER [--kills 50] [--steps 12] [--out FILE.json]

A run is killed, gone on with, killed again ... until it ends; then its losses, weights, optimizer, schedule, random
states and TensorBoard steps are compared, bit for bit, with those of a run that nobody killed. Half of the kills wait
for a save to be in progress. Status 1 where anything differs or a half checkpoint was met.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from faulty_runs import STAGING, command, differing, ended, fingerprint, half_checkpoints, start, write_rows


def main() -> int:
    options = read_options()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        result = kills(Path(name), options.model, options.kills, options.steps)
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return int(bool(result["differing"] or result["half_checkpoints"] or result["failed"]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def kills(folder: Path, model: str, count: int, steps: int) -> dict[str, Any]:
    """Kill ``count`` times, in as many runs as that takes."""
    os.environ["ADAPTFT_HOME"] = str(folder / "home")
    rows, log = write_rows(folder / "rows.jsonl"), folder / "log"
    begin = time.monotonic()
    whole = folder / "whole"
    if ended(start(command(model, rows, whole, steps=steps), log)) != 0:
        sys.exit(log.read_text()[-3000:])
    seconds, expected = time.monotonic() - begin, fingerprint(whole)
    result: dict[str, Any] = {
        "kills": 0, "in_a_save": 0, "runs": 0, "half_checkpoints": [], "differing": [], "failed": [],
    }  # fmt: skip
    while result["kills"] < count:
        out = folder / f"run-{result['runs']}"
        words = command(model, rows, out, steps=steps)
        for attempt in range(100):
            is_last = result["kills"] >= count
            status = ended(start(words, log)) if is_last else killed(start(words, log), out, attempt, seconds)
            result["in_a_save"] += (out / STAGING).exists()
            result["half_checkpoints"] += half_checkpoints(out)
            if status == 0:
                break
            result["kills"] += status == -signal.SIGKILL
            if status != -signal.SIGKILL:
                result["failed"].append(log.read_text()[-2000:])
                return result
        result["runs"] += 1
        result["differing"] += differing(expected, fingerprint(out))
    return result | {"seconds": time.monotonic() - begin}


def killed(child: int, out: Path, attempt: int, seconds: float) -> int:
    """Kill ``child`` at a random moment, in every other attempt at one of a save; its status."""
    until = time.monotonic() + random.uniform(0.2, 0.7) * seconds
    if attempt % 2:
        until = time.monotonic() + 2 * seconds
        wanted = random.randint(1, 2)
        while wanted and time.monotonic() < until and (status := ended(child, time.monotonic())) is None:
            if (out / STAGING).exists():
                wanted -= 1
                pause = random.uniform(0.0, 0.05)
                while wanted and (out / STAGING).exists():
                    time.sleep(0.0005)
                time.sleep(pause)
        if wanted and status is not None:
            return status
        until = time.monotonic()
    if (found := ended(child, until)) is not None:
        return found
    os.kill(child, signal.SIGKILL)
    ended_with = ended(child)
    assert ended_with is not None
    return ended_with


if __name__ == "__main__":
    sys.exit(main())
