"""One rank of a run: ``python -m adaptft.training.worker PLAN OUTPUT_DIR``, started by torchrun."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from adaptft import quiet
from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json, write_json
from adaptft.training import failures, folders, interruption, ranks

INTERRUPTED = 130


def main(plan_file: Path, output_dir: Path) -> int:
    """Run this rank of the plan in ``plan_file``; the first rank leaves the report beside it, a failing one why."""
    quiet.libraries()
    try:
        from adaptft.training.run import run

        with interruption.terminable():
            plan = read_json(TrainPlan, plan_file, error=TrainingError, what="plan", fix="Plan again.")
            report = run(plan, output_dir)
    except KeyboardInterrupt:
        return INTERRUPTED  # the process that started the ranks says what is kept
    except Exception as cause:
        failure = failures.of(cause, ranks.rank())
        failures.leave(failure, plan_file.parent)
        if failure.kind == "bug":
            print(f"Rank {failure.rank}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return failure.exit_code
    if ranks.is_first():
        write_json(plan_file.with_name(folders.REPORT), report)
    return 0


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), Path(sys.argv[2]))
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # taking the process group down would wait for ranks that wait for this one
