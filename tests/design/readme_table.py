"""The table of decisions in the READMEs: ``python tests/design/readme_table.py`` prints it.

``--write`` puts it between the marks of every README that is there.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

from adaptft import models, shapes
from adaptft.cli.estimates import estimate
from adaptft.facts import Machine
from adaptft.plans import SHARDED, TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_with
from adaptft.requests import TrainRequest, TrainType
from adaptft.units import format_bytes

ROOT = Path(__file__).parents[2]
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
START, END = "<!-- decisions -->", "<!-- /decisions -->"
MODEL, LENGTH, DATASET = "qwen-7b", 1024, "openai/gsm8k:main#7473"
COMMAND = f"adaptft plan --model {MODEL} --train_type TYPE --gpu GPU --dataset {DATASET} --max_length {LENGTH}"
"""What the READMEs say that the table comes out of; a test runs it."""
# heading, key of the policy's table of GPUs (None: no GPU), how many
MACHINES: tuple[tuple[str, str | None, int], ...] = (
    ("T4", "t4", 1), ("A10", "a10", 1), ("L4", "l4", 1), ("RTX 4090", "4090", 1), ("2 x RTX 4090", "4090", 2),
    ("A100 40 GB", "a100-40g", 1), ("A100 80 GB", "a100-80g", 1), ("8 x A100 80 GB", "a100-80g", 8),
    ("H100", "h100", 1), ("H200", "h200", 1), ("CPU, 64 GB", None, 1),
)  # fmt: skip


def table() -> str:
    """Markdown: a row a machine, a column a train_type, a plan in each cell."""
    kinds: tuple[TrainType, ...] = get_args(TrainType)
    lines = ["| GPU | " + " | ".join(f"`{kind}`" for kind in kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    model, data = shapes.model_shape(models.read_config(MODEL), MODEL), estimate((DATASET,))
    for heading, key, count in MACHINES:
        plans = (plan_training(machine(key, count), model, data, _request(kind)) for kind in kinds)
        lines.append(f"| {heading} | " + " | ".join(map(cell, plans)) + " |")
    return "\n".join(lines)


def _request(kind: TrainType) -> TrainRequest:
    return TrainRequest(model=MODEL, train_type=kind, dataset=(DATASET,), max_length=LENGTH)


def machine(key: str | None, count: int) -> Machine:
    """So many idle GPUs of the table; without a key the host of one, without the GPU."""
    return machine_with(key, count) if key else replace(machine_with("t4"), gpus=())


def cell(plan: TrainPlan) -> str:
    """``bf16 on nf4, 2 of 28 layers checkpointed, batch 2 x 8: 3,107 tokens/s, 16.0 GiB``."""
    if not plan.fits:
        return f"does not fit: needs {format_bytes(plan.memory.needed_bytes)}"
    decisions = plan.decisions
    precision, batch, layers = decisions.precision.value, decisions.batch.value, decisions.checkpointing.value
    storage = decisions.method.value.base_storage
    numbers = precision.compute if storage == precision.compute else f"{precision.compute}, base in {storage}"
    if decisions.method.value.train_type == "full":
        numbers = precision.compute if storage == precision.compute else f"{precision.compute}, weights in {storage}"
    if decisions.placement.value.strategy in SHARDED:
        numbers += f", {decisions.placement.value.strategy}"
    if decisions.optimizer.value.name != "adamw":
        numbers += f", {decisions.optimizer.value.name}"
    checkpointed = f", {layers.layers}/{layers.of} layers checkpointed" if layers.layers else ""
    speed = f"{plan.speed.tokens_per_second:,.0f} tokens/s" if plan.speed else "speed not predicted"
    need = format_bytes(plan.memory.needed_bytes)
    return f"{numbers}{checkpointed}, micro-batch {batch.micro_batch_size}: {speed}, {need}"


def between_marks(text: str) -> str:
    """What stands between the marks, without the blank lines around it."""
    return text.partition(START)[2].partition(END)[0].strip()


def main() -> None:
    """Print the table, or write it."""
    if "--write" not in sys.argv:
        print(table())
        return
    for readme in filter(Path.exists, READMES):
        before, _, rest = readme.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        readme.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
