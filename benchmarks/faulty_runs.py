"""Runs of `adaptft train` that are broken on purpose, and what must be the same afterwards.

Children are forked from a process that has imported everything, so that a run costs its steps and not its imports.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers.models.qwen2.modeling_qwen2  # noqa: F401
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import adaptft.data
import adaptft.training.run  # noqa: F401
from adaptft.cli import main
from adaptft.training.checkpoints import checkpoint_folders, damage

STAGING = ".checkpoint.partial"
MEASURED = ("step", "loss", "learning_rate", "gradient_norm", "num_tokens")
"""Of a step, all but its time."""


def write_rows(path: Path, count: int = 48) -> Path:
    """Short conversations that a small model can learn, two lengths of them."""
    lines = [
        {"instruction": f"What is {n} times {n + 3}?", "output": f"{n} times {n + 3} is {n * (n + 3)}." * (1 + n % 2)}
        for n in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def command(model: str, rows: Path, out: Path, *, steps: int, **more: str) -> list[str]:
    """The words of a small LoRA run on the CPU that saves often; ``more`` overrides."""
    words = {
        "model": model, "dataset": str(rows), "output_dir": str(out), "device": "cpu", "train_type": "lora",
        "torch_dtype": "float32", "max_steps": str(steps), "max_length": "128", "packing": "false",
        "per_device_train_batch_size": "2", "gradient_accumulation_steps": "2", "save_steps": "2", "eval_steps": "5",
        "lora_dropout": "0.1", "resume_from_checkpoint": "auto", "report_to": "tensorboard",
    }  # fmt: skip
    return ["train", *(word for name, value in (words | more).items() for word in (f"--{name}", value))]


def start(words: list[str], log: Path, prepare: Callable[[], None] | None = None) -> int:
    """Fork a child that runs ``adaptft`` with ``words``; its number. ``prepare`` breaks something in it first."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        # a log of this child alone: those of many would come to a size that the fault `file_limit` forbids
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if prepare is not None:
            prepare()
        status = main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 70
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def ended(child: int, until: float | None = None) -> int | None:
    """The status of ``child`` (negative: the signal that killed it); None where it still runs at ``until``."""
    while True:
        found, status = os.waitpid(child, 0 if until is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() >= until:
            return None
        time.sleep(0.001)


def fingerprint(out: Path) -> dict[str, Any]:
    """All that has to be the same of two runs: losses, weights, optimizer, schedule, random states, TensorBoard."""
    report = json.loads((out / "report.json").read_text())
    last = checkpoint_folders(out)[0]
    loaded = {
        name: _plain(torch.load(last / f"{name}{end}", weights_only=False))
        for name, end in (("optimizer", ".pt"), ("scheduler", ".pt"), ("rng_state", ".pth"))
    }
    return {
        "steps": [[step[name] for name in MEASURED] for step in report["steps"]],
        "held_out": [report["initial_eval_loss"], report["final_eval_loss"]],
        "weights": (out / "adapter_model.safetensors").read_bytes().hex(),
        "tensorboard": tensorboard(out),
        **loaded,
    }


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not the same, bit for bit."""
    return [name for name in one if one[name] != other[name]]


def furthest(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest relative difference between the losses of two runs: of steps, of held-out rows, in TensorBoard.

    Infinite where one has a loss that the other has not.
    """
    losses, others = _losses(one), _losses(other)
    if losses.keys() != others.keys():
        return math.inf
    return max(abs(b / a - 1) for name in losses for a in losses[name] for b in others[name])


def _losses(run: dict[str, Any]) -> dict[tuple[str, int], list[float]]:
    """What a run says of each of its losses; TensorBoard may say several things of one."""
    steps = {("step", step[0]): [step[1]] for step in run["steps"]}
    held_out = {("held out", number): [loss] for number, loss in enumerate(run["held_out"])}
    return steps | held_out | {("tensorboard", step): told for step, told in run["tensorboard"].items()}


def _plain(value: Any) -> Any:
    """Tensors and arrays as bytes, so that values compare bit for bit."""
    if torch.is_tensor(value):
        return value.contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else value.item()
    if hasattr(value, "tobytes"):
        return value.tobytes()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def tensorboard(out: Path) -> dict[int, list[float]]:
    """The losses that TensorBoard has of each step: several where a step was taken again and came out otherwise."""
    found: dict[int, list[float]] = {}
    for file in sorted(out.glob("runs/**/events.*")):
        events = EventAccumulator(str(file))
        events.Reload()
        for event in events.Scalars("train/loss") if "train/loss" in events.Tags()["scalars"] else []:
            values = found.setdefault(event.step, [])
            if event.value not in values:
                values.append(event.value)
    return found


def half_checkpoints(out: Path) -> list[str]:
    """Checkpoint folders that are not whole."""
    return [f"{folder.name}: {problem}" for folder in checkpoint_folders(out) if (problem := damage(folder))]
