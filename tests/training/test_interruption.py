"""Ctrl-C and SIGTERM: nothing half is left, and one line says what is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Forked, when
from training_plans import a_plan

from adaptft.artifacts import plan_text
from adaptft.errors import Interrupted
from adaptft.training import interruption
from adaptft.training.checkpoints import SEAL, checkpoint_folders, damage
from adaptft.training.interruption import STOPPING, told

ROOT = Path(__file__).parents[2]
RANKS = """
import sys
from pathlib import Path
from adaptft.cli.errors import run
from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json
from adaptft.training import train
plan = read_json(TrainPlan, Path(sys.argv[1]), error=TrainingError, what="plan", fix="")
sys.exit(run(lambda: train(plan, Path(sys.argv[2])) and None))
"""


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n} + {n}?", "output": f"{n + n}."}) for n in range(40)))
    return path


def stopped(words, number, condition, tmp_path, waits_at=None):
    """Start ``adaptft`` with ``words``, signal it when ``condition()`` holds; its status and its lines on stderr."""
    home = {"ADAPTFT_HOME": str(tmp_path / "home")}
    running = Forked(words, tmp_path / "log", home, folder=tmp_path, waits_at=waits_at)
    when(running, condition)
    if number is not None:
        running.send_signal(number)
    return running.ended()


def command(model, rows, out, *words):
    return [
        "train", "--model", str(model), "--dataset", str(rows), "--output_dir", str(out), "--device", "cpu",
        "--max_steps", "5000", "--max_length", "64", "--train_type", "lora", "--report_to", "none", *words,
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_the_whole_checkpoint_is_named_with_the_way_to_go_on(tiny_qwen2, rows, tmp_path, number):
    out = tmp_path / "out"
    words = command(tiny_qwen2, rows, out, "--save_steps", "2")
    status, lines = stopped(words, number, (out / "checkpoint-2" / SEAL).exists, tmp_path, waits_at=3)
    assert status == 0
    kept = checkpoint_folders(out)
    assert kept
    assert [damage(folder) for folder in kept] == [None] * len(kept)
    assert lines[-1] == (
        f"Stopped and saved: {kept[0]} holds every step; go on with the same command and "
        f"--resume_from_checkpoint auto --output_dir {out}"
    )
    assert STOPPING.format(interruption.GRACE_SECONDS).strip() in lines
    assert "Traceback" not in "\n".join(lines)
    assert not (out / "adaptft.json").exists(), "the run is not finished"


def test_before_the_first_checkpoint_the_steps_so_far_are_saved(tiny_qwen2, rows, tmp_path):
    out = tmp_path / "out"
    words = ["tensorboard" if w == "none" else w for w in command(tiny_qwen2, rows, out, "--save_steps", "4999")]
    status, lines = stopped(words, signal.SIGTERM, lambda: list(out.glob("runs/**/events.*")), tmp_path)
    assert status == 0
    (kept,) = checkpoint_folders(out)
    assert damage(kept) is None
    assert lines[-1].startswith(f"Stopped and saved: {kept} holds every step")


@pytest.mark.parametrize("number", interruption.SIGNALS, ids=lambda n: n.name)
def test_a_second_signal_stops_at_once(tmp_path, number):
    def run():
        with told(tmp_path), interruption.finishing_steps():
            signal.raise_signal(number)
            assert interruption.requested()
            signal.raise_signal(number)
            pytest.fail("the second signal did not stop")

    with pytest.raises(Interrupted, match="nothing is kept"):
        run()


def test_a_step_that_takes_longer_than_the_grace_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(interruption, "GRACE_SECONDS", 0.1)

    def run():
        with told(tmp_path), interruption.finishing_steps():
            signal.raise_signal(signal.SIGTERM)
            time.sleep(10)
            pytest.fail("the grace did not end")

    with pytest.raises(Interrupted):
        run()


def test_what_is_saved_in_time_takes_the_time_it_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(interruption, "GRACE_SECONDS", 0.1)

    def run():
        with told(tmp_path):
            with interruption.finishing_steps():
                signal.raise_signal(signal.SIGTERM)
                interruption.arrived()
                time.sleep(0.3)
            assert not interruption.requested(), "the next run in this process is not stopped"

    with pytest.raises(Interrupted, match="had come to its end; its result is in") as told_of:
        run()
    assert told_of.value.exit_code == 0


def test_outside_of_the_steps_the_first_signal_stops_at_once(tmp_path):
    with pytest.raises(Interrupted), told(tmp_path):
        signal.raise_signal(signal.SIGINT)


def test_before_the_first_checkpoint_nothing_is_kept(tiny_qwen2, rows, tmp_path):
    out = tmp_path / "out"
    words = command(tiny_qwen2, rows, out, "--save_strategy", "no")
    status, lines = stopped(words, signal.SIGINT, (out / "plan.json").exists, tmp_path)
    assert status == 130
    assert lines[-1] == f"Interrupted before the first checkpoint: nothing is kept in {out}; start the run again."
    assert not out.exists()


@pytest.mark.slow
def test_ranks_stop_together(tiny_qwen2, rows, tmp_path):
    from adaptft.plans import Placement

    out, plan_file = tmp_path / "out", tmp_path / "plan.json"
    plan = a_plan(
        tiny_qwen2, request={"dataset": (str(rows),)}, placement=Placement(strategy="ddp", gpu_indices=(0, 1)),
        batch={"micro_batch_size": 1, "data_parallel_size": 2}, schedule={"max_steps": 5000, "save_steps": 2},
    )  # fmt: skip
    plan_file.write_text(plan_text(plan))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ADAPTFT_HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        [sys.executable, "-c", RANKS, str(plan_file), str(out)], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not list(out.glob(f"checkpoint-*/{SEAL}")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        lines = process.communicate(timeout=120)[1].strip().splitlines()
    assert process.returncode == 0
    assert lines[-1].startswith(f"Stopped and saved: {checkpoint_folders(out)[0]} holds every step")


def test_the_handler_that_was_there_comes_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="nothing is kept"), told(tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
