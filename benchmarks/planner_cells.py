"""The cells of planner_accuracy.py: what is run, and the requests and rows they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from adaptft.facts import DatasetShape
from adaptft.requests import TrainRequest

STEPS = 8
"""Optimizer steps of a cell; the first two are not counted."""
ALPACA_TOKENS = 285
SEED = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run. ``row_tokens`` is the rows' mean length (0: every row fills a sequence)."""

    kind: str
    model: str
    train_type: str
    max_length: int
    micro_batch: int | None = None
    accumulation: int | None = None
    compute: str | None = None
    checkpointing: str | None = None
    packing: bool = True
    row_tokens: int = 0
    wishes: dict[str, Any] = field(default_factory=dict)


def forced(model: str, train_type: str, compute: str, length: int, micro: int, layers: str, **more: Any) -> Cell:
    return Cell(
        kind="forced", model=model, train_type=train_type, compute=compute, max_length=length, micro_batch=micro,
        accumulation=more.pop("accumulation", 1), checkpointing=layers, **more,
    )  # fmt: skip


FORCED = (
    forced("qwen2.5-0.5b", "lora", "bf16", 512, 4, "none"),
    forced("qwen2.5-0.5b", "lora", "bf16", 2048, 8, "none"),
    forced("qwen2.5-0.5b", "full", "bf16", 2048, 8, "none"),
    forced("qwen2.5-0.5b", "full", "fp32", 2048, 4, "none"),
    forced("qwen2.5-0.5b", "qlora", "bf16", 2048, 8, "all"),
    forced("qwen3-0.6b", "lora", "bf16", 2048, 8, "none", row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-1.5b", "lora", "bf16", 1024, 4, "none"),
    forced("qwen2.5-1.5b", "lora", "bf16", 4096, 4, "some"),
    forced("qwen2.5-1.5b", "full", "bf16", 2048, 8, "none"),
    forced("qwen2.5-1.5b", "full", "fp32", 4096, 4, "all"),
    forced("qwen2.5-1.5b", "qlora", "bf16", 2048, 4, "none"),
    forced("qwen3-1.7b", "lora", "bf16", 8192, 2, "none"),
    forced("llama3.2-1b", "full", "bf16", 4096, 4, "none", row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-7b", "lora", "bf16", 512, 4, "none"),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 4, "none"),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 4, "some"),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 8, "all"),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 4, "none", row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 8, "none", packing=False, row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-7b", "lora", "bf16", 2048, 2, "none", accumulation=4),
    forced("qwen2.5-7b", "lora", "bf16", 16384, 1, "some"),
    forced("qwen2.5-7b", "lora", "bf16", 32768, 1, "all"),
    forced("qwen2.5-7b", "lora", "fp8", 512, 4, "none"),
    forced("qwen2.5-7b", "lora", "fp8", 2048, 4, "none"),
    forced("qwen2.5-7b", "lora", "fp8", 2048, 8, "some"),
    forced("qwen2.5-7b", "lora", "fp8", 2048, 4, "none", row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-7b", "lora", "fp8", 8192, 2, "all"),
    forced("qwen2.5-7b", "lora", "fp8", 32768, 1, "all"),
    forced("qwen2.5-7b", "qlora", "bf16", 1024, 4, "none"),
    forced("qwen2.5-7b", "qlora", "bf16", 2048, 8, "all"),
    forced("qwen2.5-7b", "qlora", "bf16", 2048, 4, "none", packing=False, row_tokens=ALPACA_TOKENS),
    forced("qwen2.5-7b", "full", "bf16", 2048, 4, "none"),
    forced("qwen2.5-7b", "full", "bf16", 4096, 4, "all"),
    forced("qwen2.5-7b", "full", "bf16", 2048, 2, "none", accumulation=4),
    forced("qwen2.5-7b", "full", "bf16", 2048, 4, "none", wishes={"optim": "adamw_8bit"}),
    forced("qwen3-8b", "lora", "bf16", 2048, 4, "none"),
    forced("qwen3-8b", "lora", "fp8", 2048, 4, "none"),
    forced("llama3-8b", "lora", "bf16", 2048, 4, "none"),
    forced("llama3-8b", "lora", "fp8", 4096, 2, "none"),
    forced("llama2-7b", "qlora", "bf16", 4096, 2, "all"),
    forced("qwen2.5-14b", "lora", "bf16", 2048, 4, "none"),
    forced("qwen2.5-14b", "lora", "fp8", 2048, 4, "none"),
    forced("qwen2.5-14b", "qlora", "bf16", 4096, 2, "all"),
    forced("qwen3-14b", "lora", "bf16", 2048, 4, "some"),
    forced("qwen2.5-32b", "lora", "bf16", 2048, 2, "some"),
    forced("qwen2.5-32b", "lora", "fp8", 2048, 2, "all"),
    forced("qwen2.5-32b", "qlora", "bf16", 2048, 4, "all"),
    forced("qwen3-32b", "qlora", "bf16", 8192, 1, "all"),
)
"""Sizes, shapes, methods, types, lengths, packing and checkpointing."""

PLANNED = tuple(
    Cell(kind="planned", model=model, train_type=train_type, max_length=length, row_tokens=rows)
    for model, train_types in (
        ("qwen2.5-0.5b", ("full", "lora")),
        ("qwen2.5-1.5b", ("full", "lora")),
        ("qwen2.5-7b", ("full", "lora", "qlora")),
        ("llama3.1-8b", ("lora", "qlora")),
        ("qwen3-14b", ("lora", "qlora")),
        ("qwen2.5-32b", ("qlora",)),
    )
    for train_type in train_types
    for length, rows in ((1024, ALPACA_TOKENS), (4096, 0), (16384, 0), (32768, 0))
)[:44]
"""What a user would type; the policy decides, and no run may run out of memory."""

SWEPT = (("qwen2.5-7b", "lora", 2048), ("qwen2.5-7b", "qlora", 2048), ("qwen2.5-1.5b", "full", 2048))
SWEEP = tuple(
    Cell(
        kind="sweep", model=model, train_type=train_type, max_length=length, micro_batch=micro, accumulation=16 // micro
    )
    for model, train_type, length in SWEPT
    for micro in (1, 2, 4, 8, 16)
)
"""Every way to cut 16 sequences; the planner's own choice is among them."""

CELLS = FORCED + PLANNED + SWEEP
TINY = (
    forced("tiny-qwen2", "lora", "fp32", 128, 2, "none"),
    forced("tiny-qwen2", "full", "fp32", 128, 2, "all"),
    forced("tiny-qwen2", "lora", "fp32", 128, 2, "some", packing=False, row_tokens=40),
    forced("tiny-qwen2", "qlora", "fp32", 128, 2, "none"),
    Cell(kind="planned", model="tiny-qwen2", train_type="lora", max_length=128, row_tokens=40),
    Cell(kind="sweep", model="tiny-qwen2", train_type="lora", max_length=128, micro_batch=2, accumulation=8),
)


def request(cell: Cell) -> TrainRequest:
    """The cell as a user would ask for it; checkpointing of some layers is set in the plan afterwards."""
    layers = {None: None, "none": False, "some": False, "all": True}[cell.checkpointing]
    dtypes: dict[str | None, Any] = {"bf16": "bfloat16", "fp32": None, "fp8": None, None: None}
    return TrainRequest(
        model=cell.model, train_type=cell.train_type, max_length=cell.max_length, packing=cell.packing,  # type: ignore[arg-type]
        per_device_train_batch_size=cell.micro_batch, gradient_accumulation_steps=cell.accumulation,
        gradient_checkpointing=layers, torch_dtype=dtypes[cell.compute],
        fp8={"fp8": True, "bf16": False, "fp32": False, None: None}[cell.compute],
        max_steps=STEPS, seed=SEED, save_strategy="no", eval_strategy="no", report_to=(), num_gpus=None, **cell.wishes,
    )  # fmt: skip


def rows(cell: Cell, vocabulary: int) -> list[list[int]]:
    """Random tokens in rows that are enough for all steps, each as long as the cell says."""
    import numpy as np

    random = np.random.default_rng(SEED)
    wanted = (STEPS + 1) * max(16, (cell.micro_batch or 1) * (cell.accumulation or 1)) * cell.max_length
    mean_tokens = cell.row_tokens or cell.max_length
    count = wanted // mean_tokens if cell.packing else wanted // cell.max_length
    lengths = np.full(count, cell.max_length)
    if cell.row_tokens:
        lengths = np.clip(random.exponential(mean_tokens, count), 8, cell.max_length).astype(int)
    return [random.integers(0, vocabulary, length).tolist() for length in lengths]


def describe(tokens: list[list[int]]) -> DatasetShape:
    total = sum(map(len, tokens))
    return DatasetShape(
        num_rows=len(tokens), num_tokens=total, num_trained_tokens=total, longest_row_tokens=max(map(len, tokens))
    )
