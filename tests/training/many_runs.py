"""Several runs by the same ranks, one after the other: ``torchrun many_runs.py PLAN OUTPUT_DIR PLAN OUTPUT_DIR ...``.

Starting ranks takes longer than what they do in the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

from accelerate.state import AcceleratorState

from adaptft import quiet
from adaptft.errors import TrainingError
from adaptft.plans import TrainPlan
from adaptft.records import read_json
from adaptft.training.run import run

if __name__ == "__main__":
    quiet.libraries()
    for plan_file, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        run(read_json(TrainPlan, Path(plan_file), error=TrainingError, what="plan", fix=""), Path(folder))
        AcceleratorState._reset_state()  # the next plan may shard otherwise
