"""One rank of a run: ``python -m adaptft.training.worker OUTPUT_DIR``, started by torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from adaptft.errors import AdaptftError, TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json
from adaptft.training import folders


def main(output_dir: Path) -> int:
    """Run this rank of the plan in ``output_dir``; errors of users become two lines from the first rank."""
    from adaptft.training.run import run

    try:
        plan = read_json(
            TrainPlan, output_dir / folders.PLAN, error=TrainingError, what="plan", fix="Start the run again."
        )
        run(plan, output_dir)
    except AdaptftError as error:
        if int(os.environ.get("RANK", 0)) == 0:
            print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
