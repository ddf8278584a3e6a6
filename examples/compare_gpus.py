"""Which GPU for this job? Plans for cards that nobody has to own, in Python.

python examples/compare_gpus.py [MODEL] [TRAIN_TYPE]
"""

from __future__ import annotations

import sys

from adaptft import DatasetShape, TrainRequest, plan_training
from adaptft.models import read_config
from adaptft.policy.assumed import machine_with
from adaptft.shapes import model_shape
from adaptft.units import format_bytes, format_seconds

GPUS = ("t4", "a10", "4090", "a100-40g", "a100-80g", "h100")
DATA = DatasetShape(num_rows=20_000, num_tokens=5_700_000, num_trained_tokens=4_000_000, longest_row_tokens=1500)


def main(model: str = "qwen2.5-7b", train_type: str = "qlora") -> None:
    """Print one line a GPU: what would be done, how long it would take, what it would cost."""
    shape = model_shape(read_config(model), model)
    request = TrainRequest(model=model, train_type=train_type, num_train_epochs=1)  # type: ignore[arg-type]
    for gpu in GPUS:
        plan = plan_training(machine_with(gpu), shape, DATA, request)
        if not plan.fits:
            print(f"{gpu:10} does not fit: needs {format_bytes(plan.memory.needed_bytes)}")
            continue
        assert plan.speed is not None, "every GPU of the table has a speed"
        price = f"${plan.cost.total_usd:.2f}" if plan.cost else "no price known"
        print(
            f"{gpu:10} {plan.decisions.precision.value.compute:5} peak {format_bytes(plan.memory.peak_bytes):9} "
            f"{plan.speed.tokens_per_second:7.0f} tokens/s  {format_seconds(plan.speed.total_seconds):12} {price}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
