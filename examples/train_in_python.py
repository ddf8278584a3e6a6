"""Plan and train from Python, without the command line.

python examples/train_in_python.py MODEL_FOLDER DATA.jsonl OUTPUT_FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from adaptft import TrainRequest, data, models, plan_training, probe, shapes, training


def main(model: str, rows: str, output: str) -> None:
    """Read the rows, plan for this machine, train for ten steps, and print what came of it."""
    request = TrainRequest(model=model, train_type="lora", dataset=(rows,), max_steps=10, output_dir=output)
    folder = models.locate(model).path
    tokenized = data.tokenize(data.DataSettings(sources=request.dataset), models.load_tokenizer(folder))
    shape = shapes.model_shape(models.read_config(model), model)
    plan = plan_training(probe(), shape, tokenized.shape, request)
    print(plan.decisions.precision.reason)

    report = training.train(plan, Path(output))
    print(f"loss {report.steps[0].loss:.3f} -> {report.steps[-1].loss:.3f} in {len(report.steps)} steps")


if __name__ == "__main__":
    main(*sys.argv[1:])
