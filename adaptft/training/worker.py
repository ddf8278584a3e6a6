"""One rank of a run: ``python -m adaptft.training.worker PLAN OUTPUT_DIR``, started by torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from adaptft import quiet
from adaptft.errors import AdaptftError, TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json, write_json
from adaptft.training import folders, interruption

INTERRUPTED = 130


def main(plan_file: Path, output_dir: Path) -> int:
    """Run this rank of the plan in ``plan_file``; the first rank leaves the report beside it.

    Errors of users become two lines from the first rank.
    """
    quiet.libraries()
    from adaptft.training.run import run

    try:
        with interruption.terminable():
            plan = read_json(TrainPlan, plan_file, error=TrainingError, what="plan", fix="Plan again.")
            report = run(plan, output_dir)
    except KeyboardInterrupt:
        return INTERRUPTED  # the process that started the ranks says what is kept
    except AdaptftError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            print(error, file=sys.stderr)
        return error.exit_code
    if int(os.environ.get("RANK", 0)) == 0:
        write_json(plan_file.with_name(folders.REPORT), report)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
