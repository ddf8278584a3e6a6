"""Machines of a run as processes of this one, each with one rank on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from adaptft.artifacts import plan_text
from adaptft.plans import TrainPlan

ROOT = Path(__file__).parents[2]
MACHINE = """
import sys
from pathlib import Path
from adaptft.cli.errors import run
from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import dumps, read_json
from adaptft.training import train
plan = read_json(TrainPlan, Path(sys.argv[1]), error=TrainingError, what="plan", fix="")
sys.exit(run(lambda: print(dumps(train(plan, Path(sys.argv[2]))))))
"""


class OneOfSeveral:
    """Machine ``rank``: a process with its output in files, in a session of its own so that it can be lost whole."""

    def __init__(self, rank: int, words: list[str], folder: Path, prefix: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rank, self._out, self._err = rank, folder / f"{rank}.out", folder / f"{rank}.err"
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "PET_NODE_RANK": str(rank), "ADAPTFT_HOME": str(folder / f"home-{rank}"),
        }  # fmt: skip
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, *words], env=environment, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> list[str]:
        return self._err.read_text().strip().splitlines()

    def status(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)

    def lose(self) -> None:
        """As when the power fails: every process of the machine ends without a word."""
        import psutil

        everything = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
        for process in everything:
            process.kill()
        self.process.wait()


def start(
    plan: TrainPlan, folder: Path, rank: int, out: Path, plan_name: str = "plan.json", prefix: tuple[str, ...] = ()
) -> OneOfSeveral:
    """Machine ``rank`` of ``plan``, whose output folder is ``out``; what it prints lies in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    plan_file = folder / plan_name
    plan_file.write_text(plan_text(plan))
    return OneOfSeveral(rank, ["-c", MACHINE, str(plan_file), str(out)], folder, prefix)


def until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
