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
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from planner_cells import CELLS, TINY, Cell, describe, rows
from planner_runs import decided, forget, plan, train

from adaptft import hardware, shapes
from adaptft.facts import Machine

GIB = 2**30


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
    here = {name: value for name, value in to_dict(machine).items() if name != "disk"}
    found = {"machine": here, "summary": summary(cells), "cells": cells}
    write_json(path, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
