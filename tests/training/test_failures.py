"""A rank that ends ends all of them, with its error on top, the rank named and a way to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from training_plans import FULL, a_plan

from adaptft.artifacts import plan_text
from adaptft.errors import OutputError, TrainingError
from adaptft.plans import Batch, Placement
from adaptft.training import failures
from adaptft.training.checkpoints import SEAL
from adaptft.training.failures import Ending, Failure, explain

HERE = Path(__file__).parent
WITHIN_SECONDS = 60
FAULT = "ADAPTFT_TEST_FAULT"
START = """
import sys
from pathlib import Path
from adaptft.cli.errors import run
from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json
from adaptft.training import train
plan = read_json(TrainPlan, Path(sys.argv[1]), error=TrainingError, what="plan", fix="")
sys.exit(run(lambda: train(plan, Path(sys.argv[2]))))
"""


def a_failure(rank, kind="told", problem="No space.", fix="Free some.", exit_code=1, at=0.0):
    return Failure(rank=rank, kind=kind, problem=problem, fix=fix, exit_code=exit_code, at=at)


LOST = a_failure(0, "lost", "RuntimeError: Connection closed by peer", "", at=2.0)
BUG = a_failure(1, "bug", "KeyError: 'q_proj'", "", at=3.0)
TOLD = a_failure(1, at=4.0)


@pytest.mark.parametrize(
    ("told", "endings", "said"),
    [
        ([LOST, BUG, TOLD], [Ending(rank=0, exit_code=1)], "Rank 1 of 2: No space."),
        ([TOLD, a_failure(0, at=1.0)], [], "No space."),
        ([LOST], [Ending(rank=1, exit_code=-signal.SIGKILL)], "Rank 1 of 2 was killed by SIGKILL (as the system does"),
        ([LOST], [Ending(rank=0, exit_code=-signal.SIGTERM)], "Rank 0 of 2 lost the others: RuntimeError: Connection"),
        ([LOST, BUG], [], "Rank 1 of 2 stopped with KeyError: 'q_proj'; its traceback stands above. There is no"),
        ([a_failure(0, "lost", "RuntimeError: Timed out", "")], [], "Rank 0 of 2 waited in vain for the others"),
        ([], [], "The ranks of the run ended without a word. There is no checkpoint yet."),
    ],
    ids=["told", "all the same", "killed", "stopped by torchrun", "a bug", "a timeout", "nothing known"],
)
def test_the_first_cause_is_told(told, endings, said, tmp_path):
    error = explain(told, endings, 2, tmp_path)
    assert error.problem.startswith(said)
    assert str(error).count("\n") == 1
    assert error.fix.endswith(("start the run again.", "Free some."))


def test_the_class_of_an_error_still_decides_the_exit_code(tmp_path):
    assert explain([a_failure(1, exit_code=2)], [], 2, tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (OutputError("a", fix="b"), "told"),
        (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:2048"), "lost"),
        (RuntimeError("NCCL error in: unhandled system error"), "lost"),
        (RuntimeError("shapes do not match"), "bug"),
        (KeyError("x"), "bug"),
    ],
)
def test_what_ended_a_rank_is_left_for_the_others(cause, kind, tmp_path):
    failures.leave(failures.of(cause, 1), tmp_path)
    (found,), endings = failures.found_in(tmp_path)
    assert (found.kind, found.rank, endings) == (kind, 1, [])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(f'{{"instruction": "Say {n}.", "output": "{n} {n} {n}"}}' for n in range(40)))
    return path


def two_ranks(model, rows, strategy):
    batch = Batch(
        micro_batch_size=1, gradient_accumulation_steps=1, data_parallel_size=2, global_batch_size=2,
        eval_batch_size=2, max_length=96, packing=True,
    )  # fmt: skip
    return a_plan(
        model, request={"dataset": (str(rows),)}, method=FULL, batch=batch,
        placement=Placement(strategy=strategy, gpu_indices=(0, 1)),
        schedule={"max_steps": 100000, "held_out_ratio": 0, "save_steps": 2},
    )  # fmt: skip


def started(plan, folder, **environment):
    plan_file = folder / "plan.json"
    plan_file.write_text(plan_text(plan))
    paths = os.pathsep.join([str(HERE / "one_rank"), str(HERE), str(HERE.parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", START, str(plan_file), str(folder / "out")], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": paths} | environment,
    )  # fmt: skip


def rank_process(run, rank):
    for process in psutil.Process(run.pid).children(recursive=True):
        if "adaptft.training.worker" in process.cmdline() and process.environ().get("RANK") == str(rank):
            return process
    return None


def ended(run):
    """The last two lines of its messages, and how long its end took."""
    begin = time.monotonic()
    _, errors = run.communicate(timeout=WITHIN_SECONDS)
    assert run.returncode == TrainingError.exit_code, errors
    return errors.strip().splitlines()[-2:], time.monotonic() - begin


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_and_names_the_last_checkpoint(tiny_qwen2, rows, tmp_path):
    run = started(two_ranks(tiny_qwen2, rows, "fsdp2"), tmp_path)
    while not list((tmp_path / "out").glob(f"checkpoint-*/{SEAL}")):
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.2)
    rank_process(run, 1).kill()
    (problem, fix), seconds = ended(run)
    assert "Rank 1 of 2 was killed by SIGKILL" in problem
    assert f"The last good checkpoint is {tmp_path}/out/checkpoint-" in problem
    assert "--resume_from_checkpoint auto" in fix
    assert seconds < WITHIN_SECONDS


@pytest.mark.slow
def test_memory_that_runs_out_in_one_rank_ends_all_with_what_to_set(tiny_qwen2, rows, tmp_path):
    run = started(two_ranks(tiny_qwen2, rows, "ddp"), tmp_path, **{FAULT: "1"})
    for line in run.stderr:
        if "ranks, ddp" in line:
            assert "one that does not answer for 30 min 00 s ends the run" in line
            break
    (problem, fix), _ = ended(run)
    assert "Rank 1 of 2: The host ran out of memory" in problem
    assert "The last good checkpoint is" in problem
    assert "--max_length 48" in fix
    assert "--resume_from_checkpoint auto" in fix
