"""Training for hours with random faults: does a step get lost, does anything grow?

python benchmarks/soak.py MODEL_FOLDER [--minutes 120] [--out benchmarks/results/soak-DATE.json]

One small LoRA run after the other is trained to its end, through faults of all kinds: SIGKILL and SIGTERM at random
moments, memory that runs out in forward or backward passes and in evaluation, a file-size limit (what a full disk or
a quota does to a write), a share that is away for a moment, a main thread that hangs in C code and is asked to end, a
byte flipped in a checkpoint, numbers that are none. After each run every optimizer step and evaluation must be there,
with the loss of a run without faults, and the random state at the end: bit for bit, and losses to 1e-5 where memory ran
out. Half of the runs have dropout, and no memory that runs out: micro-batches that are cut have other masks.
Memory and file handles of the children, and what is left on the disk, are measured over the whole time.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import errno
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from faulty_runs import command, differing, ended, fingerprint, furthest, half_checkpoints, start, write_rows
from torch.nn.modules import module as hooks
from transformers.modeling_layers import GradientCheckpointingLayer

from adaptft.training.checkpoints import checkpoint_folders

STEPS = 24
CUT_TOLERANCE = 1e-5
"""Relative: sums of floating-point numbers in another order."""
ROUNDED = ("steps", "held_out", "tensorboard", "weights", "optimizer")
"""What is not the same bit for bit in a run whose memory ran out: torch adds up gradients in another order as soon as a
hook looks at the backward pass, and what a killed process took in parts before it saved stays in TensorBoard alone."""
DROPOUTS = ("0", "0.1")
Prepare = Callable[[], None]


def out_of_memory(probability: float) -> Prepare:
    """Layers run out of memory at more than one row, padded to 128 tokens, now and then, forward or backward."""

    def prepare() -> None:
        chance = random.Random(os.getpid())  # the global one is the run's

        def look(module: Any, values: Any) -> None:
            if not isinstance(module, GradientCheckpointingLayer) or chance.random() > probability:
                return
            tensor = next(value for value in values if torch.is_tensor(value))
            if tensor.shape[0] * tensor.shape[1] > 128:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        which = hooks.register_module_forward_pre_hook, hooks.register_module_full_backward_pre_hook
        random.choice(which)(look)

    return prepare


def file_limit() -> None:
    """No file may grow beyond what half of an optimizer's state takes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))


def share_away() -> None:
    """The share of the checkpoints says once that it cannot be reached, as NFS does."""
    save, at, calls = torch.save, random.randint(1, 12), 0

    def save_or_not(*arguments: Any, **settings: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        save(*arguments, **settings)

    torch.save = save_or_not


def hangs() -> None:
    """A layer's pass never ends, and no Python runs in the main thread any more: a collective that waits for a rank."""
    from adaptft.training import interruption

    interruption.GRACE_SECONDS = 1.0
    at, passes = random.randint(10, 200), 0

    def look(module: Any, values: Any) -> None:
        nonlocal passes
        passes += isinstance(module, GradientCheckpointingLayer)
        if passes == at:
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):  # the second time it waits for itself
                ctypes.CDLL(None).pthread_mutex_lock(mutex)

    hooks.register_module_forward_pre_hook(look)


def no_number() -> None:
    """The activations of one random step are no numbers; that step is lost to any run, and told."""
    at, passes = random.randint(10, 60), 0

    def look(module: Any, inputs: Any, output: Any) -> Any:
        nonlocal passes
        if not isinstance(module, GradientCheckpointingLayer) or not module.training:
            return None
        passes += 1
        return output * math.nan if passes == at else None

    hooks.register_module_forward_hook(look)


def measured(folder: Path) -> Prepare:
    """The child writes its memory and open files, at its fifth and last step, for ``growth``."""

    def prepare() -> None:
        from transformers import TrainerCallback

        import adaptft.training.progress as progress

        class Measuring(progress.ProgressReport, TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                line = {"step": state.global_step, "bytes": resident, "files": len(os.listdir("/proc/self/fd"))}
                with (folder / f"measured-{os.getpid()}.jsonl").open("a") as stream:
                    stream.write(json.dumps(line) + "\n")

        import adaptft.training.run as run

        run.ProgressReport = Measuring  # type: ignore[misc]

    return prepare


def main() -> int:
    options = read_options()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        result = soak(Path(name), options.model, options.minutes * 60)
    text = json.dumps(result, indent=1)
    print(text)
    options.out.write_text(text + "\n", encoding="utf-8")
    return int(bool(result["lost_steps"] or result["half_checkpoints"] or result["unexpected"] or result["differing"]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/soak-{datetime.date.today()}.json"))
    return parser.parse_args()


class Soak:
    """Runs in one folder, and what is counted over all of them."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model = folder, model
        self.rows, self.log = write_rows(folder / "rows.jsonl"), folder / "log"
        self.faults: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.half: list[str] = []
        self.unexpected: list[str] = []
        self.differing: list[str] = []
        self.seconds = 0.0
        self.dropout = DROPOUTS[0]
        self.expected: dict[str, dict[str, Any]] = {}

    def reference(self) -> None:
        """Runs without faults, and how long the last of them takes."""
        for self.dropout in DROPOUTS:
            begin, out = time.monotonic(), self.folder / f"whole-{self.dropout}"
            if ended(start(self.words(out), self.log, measured(self.folder))) != 0:
                sys.exit(self.log.read_text()[-3000:])
            self.seconds, self.expected[self.dropout] = time.monotonic() - begin, fingerprint(out)

    def words(self, out: Path) -> list[str]:
        return command(self.model, self.rows, out, steps=STEPS, lora_dropout=self.dropout, learning_rate="1e-5")

    def run(self, number: int) -> None:
        """One run through faults to its end; the last of 12 attempts is left in peace."""
        out, met = self.folder / f"run-{number}", set()
        self.dropout = DROPOUTS[number % 2]
        faults = [name for name in FAULTS if self.dropout == "0" or name not in CUTTING]
        for attempt in range(12):
            fault = random.choice(faults) if attempt < 11 else "none"
            met.add(fault)
            self.faults[fault] += 1
            status = FAULTS[fault](self, out)
            self.half += half_checkpoints_but_flipped(out)
            if status == 0 and (out / "adaptft.json").exists():
                break
            if status not in EXPECTED[fault]:
                self.unexpected.append(f"{fault}: status {status}: {self.log.read_text()[-800:]}")
        self.compare(out, met)
        shutil.rmtree(out)

    def compare(self, out: Path, met: set[str]) -> None:
        """Every step is there, with the loss it has to have."""
        report = json.loads((out / "report.json").read_text())
        told = {i["step"] for i in report["incidents"] if i["kind"] == "not_a_number"}
        missing = set(range(1, STEPS + 1)) - {step["step"] for step in report["steps"]} - told
        self.totals["steps"] += STEPS
        self.totals["lost_steps"] += len(missing)
        self.totals["told_bad_steps"] += len(told)
        self.totals["incidents"] += len(report["incidents"])
        is_cut = any(incident["kind"] == "out_of_memory" for incident in report["incidents"])
        self.totals["cut_runs" if is_cut else "uncut_runs"] += 1
        if told:
            return  # a step less was learned: what follows it has other losses
        expected, found = self.expected[self.dropout], fingerprint(out)
        rounded = ROUNDED if met & CUTTING else ()
        if rounded:
            worst = furthest(expected, found)
            self.totals["worst_cut_e12"] = max(self.totals["worst_cut_e12"], int(min(worst, 1.0) * 1e12))
            if worst > CUT_TOLERANCE:
                self.differing.append(f"losses by {worst:.1e} after {sorted(met)}")
        others = [name for name in differing(expected, found) if name not in rounded]
        self.differing += [f"{name} after {sorted(met)}" for name in others]

    def child(self, out: Path, prepare: Prepare | None = None) -> int:
        def both() -> None:
            random.seed(os.getpid())
            measured(self.folder)()
            if prepare is not None:
                prepare()

        return start(self.words(out), self.log, both)

    def signalled(self, out: Path, number: int, prepare: Prepare | None = None) -> int:
        """A signal at a random moment; the status."""
        child = self.child(out, prepare)
        status = ended(child, time.monotonic() + random.uniform(0.3, 1.0) * self.seconds)
        if status is None:
            os.kill(child, number)
            status = ended(child)
        return -1000 if status is None else status

    def whole(self, out: Path, prepare: Prepare | None = None) -> int:
        status = ended(self.child(out, prepare))
        return -1000 if status is None else status

    def flip(self, out: Path) -> int:
        """One bit of the newest checkpoint is another one; then a run without further faults."""
        folders = checkpoint_folders(out)
        if folders:
            path = random.choice([p for p in folders[0].iterdir() if p.is_file()])
            content = bytearray(path.read_bytes())
            content[random.randrange(len(content))] ^= 1
            path.write_bytes(bytes(content))
        return self.signalled(out, signal.SIGKILL)


FAULTS: dict[str, Callable[[Soak, Path], int]] = {
    "none": lambda soak, out: soak.whole(out),
    "kill": lambda soak, out: soak.signalled(out, signal.SIGKILL),
    "terminate": lambda soak, out: soak.signalled(out, signal.SIGTERM),
    "interrupt": lambda soak, out: soak.signalled(out, signal.SIGINT),
    "out_of_memory": lambda soak, out: soak.whole(out, out_of_memory(0.05)),
    "out_of_memory_and_kill": lambda soak, out: soak.signalled(out, signal.SIGKILL, out_of_memory(0.05)),
    "file_limit": lambda soak, out: soak.whole(out, file_limit),
    "share_away": lambda soak, out: soak.whole(out, share_away),
    "hangs": lambda soak, out: soak.signalled(out, signal.SIGTERM, hangs),
    "flipped_bit": lambda soak, out: soak.flip(out),
    "no_number": lambda soak, out: soak.whole(out, no_number),
}
CUTTING = frozenset({"out_of_memory", "out_of_memory_and_kill"})
"""Faults that have micro-batches cut into parts."""
ANY_SIGNAL = (0, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Before a run has begun, a signal ends Python as it ends any program."""
EXPECTED: dict[str, tuple[int, ...]] = {
    "none": (0,), "kill": ANY_SIGNAL, "terminate": ANY_SIGNAL, "interrupt": ANY_SIGNAL, "out_of_memory": (0,),
    "out_of_memory_and_kill": ANY_SIGNAL, "file_limit": (1,), "share_away": (0,), "hangs": ANY_SIGNAL,
    "flipped_bit": ANY_SIGNAL, "no_number": (0,),
}  # fmt: skip


def half_checkpoints_but_flipped(out: Path) -> list[str]:
    """A flipped bit is no half checkpoint: its sizes are right."""
    return [half for half in half_checkpoints(out) if "has changed since" not in half and "is not a" not in half]


def growth(folder: Path) -> dict[str, float]:
    """From the fifth step of long children to their last one, at most: bytes and open files; and what is left over."""
    grown: list[tuple[int, int]] = []
    for path in folder.glob("measured-*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if len(lines) >= STEPS // 2:
            grown.append((lines[-1]["bytes"] - lines[4]["bytes"], lines[-1]["files"] - lines[4]["files"]))
    median = sorted(grown)[len(grown) // 2] if grown else (0, 0)
    return {
        "long_children": len(grown),
        "median_bytes": median[0],
        "most_files": max((files for _, files in grown), default=0),
        "parent_resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "parent_files": len(os.listdir("/proc/self/fd")),
        "left_partial_folders": len(list(folder.glob("**/.*partial")) + list(folder.glob("**/.checkpoint.old"))),
        "home_bytes": sum(path.stat().st_size for path in (folder / "home").rglob("*") if path.is_file()),
    }


def soak(folder: Path, model: str, seconds: float) -> dict[str, Any]:
    """Runs with faults until the time is over."""
    os.environ["ADAPTFT_HOME"] = str(folder / "home")
    begin, work = time.monotonic(), Soak(folder, model)
    work.reference()
    at_start = growth(folder)
    runs = 0
    while time.monotonic() - begin < seconds:
        work.run(runs)
        runs += 1
        print(f"{time.monotonic() - begin:.0f} s: {runs} runs, {dict(work.faults)}", file=sys.stderr, flush=True)
    totals = dict(work.totals)
    return {
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_cores": os.cpu_count(),
        "runs": runs,
        "attempts": sum(work.faults.values()),
        "faults": dict(work.faults),
        "lost_steps": totals.pop("lost_steps", 0),
        "worst_loss_difference_of_cut_runs": totals.pop("worst_cut_e12", 0) / 1e12,
        **totals,
        "half_checkpoints": work.half,
        "differing": work.differing,
        "unexpected": work.unexpected,
        "growth_before": at_start,
        "growth_after": growth(folder),
    }


if __name__ == "__main__":
    sys.exit(main())
