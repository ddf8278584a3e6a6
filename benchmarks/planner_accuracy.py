"""Predicted against measured over a matrix of runs: peak memory and step time of each cell, in one process.

python benchmarks/planner_accuracy.py BUILDER.py [--cells 0-9] [--out benchmarks/results/planner_accuracy-DATE.json]

BUILDER.py has ``config(name)``, the config.json of a model as a dict, and ``build(name, device=..., dtype=...,
attn_implementation=...)``, that model with random weights. Forced cells do what their row says; planned cells leave
batch, checkpointing and precision to the plan, and ``--other-gib 60`` lets another process hold so much of the GPU
meanwhile: none of them may run out of memory. Sweep cells run every micro-batch of one wish, so that the plan's
choice can be held against the fastest. The output is written after each cell, and cells in it are skipped (--again
runs them anew), so that the matrix can be cut into commands of a few minutes. ``--list`` prints the cells.
``--tiny`` takes cells for a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from adaptft import hardware, shapes
from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import DTYPE_NAMES, Checkpointing, Decision, TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.memory import estimate_memory
from adaptft.policy.speed import estimate_speed
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest

GIB = 2**30
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


def plan(cell: Cell, machine: Machine, model: ModelShape, data: DatasetShape) -> TrainPlan:
    """The policy's plan; where some layers are to be checkpointed, with half of them and predicted again."""
    made = plan_training(machine, model, data, request(cell))
    if cell.checkpointing != "some":
        return made
    half = Checkpointing(layers=model.num_layers // 2, of=model.num_layers)
    decisions = replace(made.decisions, checkpointing=Decision(half, "half of them, for the benchmark", "user"))
    targets = None if cell.train_type == "full" else resolve_targets(model, (), ())
    work = Workload(model=model, decisions=decisions, targets=targets, row_tokens=data.mean_row_tokens)
    on_gpu = bool(machine.gpus)
    memory = estimate_memory(work, made.memory.capacity_bytes, on_gpu=on_gpu)
    speed = estimate_speed(work, machine, machine.gpus[0] if on_gpu else None, STEPS)
    return replace(made, decisions=decisions, memory=memory, speed=speed, fits=True)


def random_base(builder: Any, made: TrainPlan, name: str) -> Any:
    """The model with random weights, on the device and stored as planned."""
    import torch

    from adaptft.kernels.packed_attention import register

    decisions = made.decisions
    attention = decisions.attention.value.implementation
    model = builder.build(
        name,
        device="cuda" if made.machine.gpus else "cpu",
        dtype=DTYPE_NAMES[decisions.precision.value.weights],
        attn_implementation=register() if attention == "varlen" else attention,
    )
    model.config.use_cache = False
    if decisions.method.value.base_storage == "nf4":
        to_nf4(model, made)
    if made.machine.gpus:
        torch.cuda.empty_cache()
    return model


def to_nf4(model: Any, made: TrainPlan) -> None:
    """Each linear layer but the skipped ones, as loading a checkpoint in 4 bits leaves it."""
    import bitsandbytes
    import torch
    from torch import nn

    method = made.decisions.method.value
    compute = getattr(torch, DTYPE_NAMES[made.decisions.precision.value.autocast])
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is not nn.Linear or name in method.skipped_modules:
                continue
            layer = bitsandbytes.nn.Linear4bit(
                child.in_features, child.out_features, bias=child.bias is not None, compute_dtype=compute,
                compress_statistics=method.double_quant, quant_type="nf4", device="meta",
            )  # fmt: skip
            layer.weight = bitsandbytes.nn.Params4bit(
                child.weight.data, requires_grad=False, quant_type="nf4", module=layer,
                compress_statistics=method.double_quant,
            ).to(child.weight.device)  # fmt: skip
            layer.bias = child.bias
            setattr(parent, name, layer)
    model.is_loaded_in_4bit = True


def train(builder: Any, cell: Cell, made: TrainPlan, tokens: list[list[int]]) -> dict[str, Any]:
    """Train as ``made`` says, with adaptft's own trainer, and report what was measured."""
    import datasets

    from adaptft import data
    from adaptft.reports import DataReport
    from adaptft.training import metrics, numerics
    from adaptft.training.arguments import training_arguments, uses_gpu
    from adaptft.training.assembly import collator, prepare_model
    from adaptft.training.batches import Rows
    from adaptft.training.identity import identify
    from adaptft.training.rows import TrainingRows
    from adaptft.training.trainer import SupervisedTrainer

    numerics.set_up(made)
    table = datasets.Dataset.from_dict({"input_ids": tokens, "trained": [[True] * len(row) for row in tokens]})
    if cell.packing:
        table = data.pack(table, cell.max_length, SEED)
    training = TrainingRows(
        training=Rows(table), evaluation=None, notes=(),
        report=DataReport(dialect="random", num_accepted=len(tokens), num_rejected=0),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        named = nameplate(Path(folder), builder.config(cell.model))
        base = random_base(builder, made, cell.model)
        memory = metrics.PeakMemory(on_gpu=uses_gpu(made), model_bytes=0 if uses_gpu(made) else weight_bytes(base))
        trainer = SupervisedTrainer(
            made, prepare_model(made, base), training_arguments(made, Path(folder), resumes=False, evaluates=False),
            collator=collator(made), train_rows=training.training, eval_rows=None,
            identity=identify(made, named, training),
        )  # fmt: skip
        trainer.train()
        steps = metrics.steps_from_history(trainer.state.log_history)
        return {
            "measured_peak_bytes": memory.measured_bytes(),
            "measured_step_seconds": metrics.median_step_seconds(steps),
            "measured_tokens_per_second": metrics.tokens_per_second(steps),
            "first_step_seconds": trainer.counters.first_step_seconds,
            "last_loss": steps[-1].loss,
        }


def nameplate(folder: Path, config: dict[str, Any]) -> Path:
    """A folder that says which model this is: a run's identity is read from one, and none is written here."""
    import torch
    from safetensors.torch import save_file

    named = folder / "model"
    named.mkdir()
    (named / "config.json").write_text(json.dumps(config))
    save_file({"none": torch.zeros(1)}, named / "model.safetensors")
    return named


def weight_bytes(model: Any) -> int:
    from adaptft.training.adapters import tensor_bytes

    return tensor_bytes(model)


def run(builder: Any, cell: Cell, machine: Machine) -> dict[str, Any]:
    """One cell: planned, run, and cleaned up after; running out of memory is a result."""
    import torch

    model = shapes.model_shape(builder.config(cell.model), cell.model)
    tokens = rows(cell, min(model.vocab_size, 8000))
    made = plan(cell, machine, model, describe(tokens))
    found = asdict(cell) | decided(made)
    if not made.fits and cell.kind == "planned":
        return found | {"planned_not_to_fit": True}
    begin = time.monotonic()
    try:
        found |= train(builder, cell, made, tokens)
    except torch.OutOfMemoryError as error:
        found |= {"out_of_memory": True, "problem": str(error).splitlines()[0]}
    finally:
        forget()
    return found | {"cell_seconds": time.monotonic() - begin}


def decided(made: TrainPlan) -> dict[str, Any]:
    """What the plan decided and predicted."""
    decisions, batch = made.decisions, made.decisions.batch.value
    return {
        "compute": decisions.precision.value.compute,
        "weights": decisions.precision.value.weights,
        "base_storage": decisions.method.value.base_storage,
        "micro_batch": batch.micro_batch_size,
        "accumulation": batch.gradient_accumulation_steps,
        "checkpointed_layers": decisions.checkpointing.value.layers,
        "optimizer": decisions.optimizer.value.name,
        "moment": made.memory.moment,
        "predicted_peak_bytes": made.memory.peak_bytes,
        "predicted_needed_bytes": made.memory.needed_bytes,
        "capacity_bytes": made.memory.capacity_bytes,
        "fits": made.fits,
        "predicted_step_seconds": made.speed.step_seconds if made.speed else None,
    }


def forget() -> None:
    """Give the device's memory and the compiler's cache back."""
    import torch

    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors over the forced cells; the plan's choice over the sweeps; runs out of memory over the planned ones."""
    errors = {
        name: [
            cell[f"predicted_{name}"] / cell[f"measured_{name}"] - 1
            for cell in cells
            if cell["kind"] != "planned" and cell.get(f"measured_{name}") and cell.get(f"predicted_{name}")
        ]
        for name in ("peak_bytes", "step_seconds")
    }
    found: dict[str, Any] = {
        name: {"cells": len(all_), "mean": mean(map(abs, all_)), "lowest": min(all_), "highest": max(all_)}
        for name, all_ in errors.items()
        if all_
    }
    planned = [cell for cell in cells if cell["kind"] == "planned" and not cell.get("planned_not_to_fit")]
    found["planned_runs"] = len(planned)
    found["planned_out_of_memory"] = sum(bool(cell.get("out_of_memory")) for cell in planned)
    found["choices"] = choices(cells)
    return found


def choices(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each sweep the micro-batch predicted to be fastest, and how much slower it is than the fastest measured."""
    found = []
    swept = [cell for cell in cells if cell["kind"] == "sweep" and cell.get("measured_step_seconds")]
    for model, train_type in sorted({(cell["model"], cell["train_type"]) for cell in swept}):
        mine = [cell for cell in swept if (cell["model"], cell["train_type"]) == (model, train_type)]
        if any(cell["predicted_step_seconds"] is None for cell in mine):
            continue
        chosen = min(mine, key=lambda cell: cell["predicted_step_seconds"])
        best = min(mine, key=lambda cell: cell["measured_step_seconds"])
        found.append(
            {
                "model": model, "train_type": train_type, "chosen": chosen["micro_batch"], "best": best["micro_batch"],
                "slower": chosen["measured_step_seconds"] / best["measured_step_seconds"] - 1,
            }
        )  # fmt: skip
    return found


def line(index: int, cell: dict[str, Any]) -> str:
    words = (
        f"{index:3} {cell['kind']:7} {cell['model']:13} {cell['train_type']:5} {cell['compute'] or '':4} "
        f"{cell['micro_batch'] or 0:2} x {cell['max_length']:5} {cell.get('checkpointed_layers', 0):2} layers"
    )
    for key, outcome in (("planned_not_to_fit", "planned not to fit"), ("out_of_memory", "OUT OF MEMORY")):
        if cell.get(key):
            return f"{words}  {outcome}"
    peak, seconds = cell["measured_peak_bytes"], cell["measured_step_seconds"]
    step = cell["predicted_step_seconds"]
    return (
        f"{words}  {peak / GIB:7.2f} GiB ({cell['predicted_peak_bytes'] / peak - 1:+.1%})  {seconds:8.3f} s "
        f"({'no prediction' if step is None else f'{step / seconds - 1:+.1%}'})  cell {cell['cell_seconds']:.0f} s"
    )


@contextlib.contextmanager
def other_process(gib: float) -> Iterator[None]:
    """Another process that holds ``gib`` of the GPU."""
    if not gib:
        yield
        return
    code = (
        f"import sys, torch; held = torch.empty(int({gib} * 2**30), dtype=torch.uint8, device='cuda');"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "held", "the other process got no memory"
        try:
            yield
        finally:
            other.terminate()


def load_builder(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("builder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(words: str | None, count: int) -> list[int]:
    """``0-9,12`` as indices; all without words."""
    if words is None:
        return list(range(count))
    ranges = (part.partition("-") for part in words.split(","))
    return [index for low, _, high in ranges for index in range(int(low), int(high or low) + 1) if index < count]


def main() -> None:
    options = read_options()
    cells = TINY if options.tiny else CELLS
    if options.list:
        print("\n".join(f"{index:3} {json.dumps(asdict(cell))}" for index, cell in enumerate(cells)))
        return
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    builder, kept = load_builder(options.builder), read(options.out)
    with other_process(options.other_gib):
        machine = hardware.with_ceilings(hardware.probe(), None)
        for index in numbers(options.cells, len(cells)):
            key = f"{index}" + (f" with {options.other_gib:g} GiB taken" if options.other_gib else "")
            if key not in kept or options.again:
                kept[key] = {"index": index, "taken_gib": options.other_gib, **run(builder, cells[index], machine)}
                print(line(index, kept[key]), flush=True)
                write(options.out, machine, kept)
    print(json.dumps(summary(list(kept.values())), indent=1))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    today = datetime.date.today().isoformat()
    parser.add_argument("builder", type=Path)
    parser.add_argument("--cells", metavar="0-9,12")
    parser.add_argument("--out", type=Path, default=Path(f"benchmarks/results/planner_accuracy-{today}.json"))
    parser.add_argument("--other-gib", type=float, default=0.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Cells of an earlier command by their key."""
    if not path.exists():
        return {}
    return {cell["key"]: cell for cell in json.loads(path.read_text())["cells"]}


def write(path: Path, machine: Machine, kept: dict[str, dict[str, Any]]) -> None:
    from adaptft.records import to_dict, write_json

    cells = [{"key": key, **{k: v for k, v in cell.items() if k != "key"}} for key, cell in kept.items()]
    found = {"machine": to_dict(machine), "summary": summary(cells), "cells": cells}
    write_json(path, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
