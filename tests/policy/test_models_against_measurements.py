"""The models of memory and time against steps measured on a GPU (benchmarks/results)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from policy_machines import ALPACA, CPU, QWEN_05B, QWEN_7B, machine, qwen2

from adaptft.plans import AdapterKernels, Checkpointing, LossKernel
from adaptft.policy.memory import estimate_memory, step_memory
from adaptft.policy.precision import precision_candidates
from adaptft.policy.search import candidates
from adaptft.policy.setting import settle
from adaptft.policy.speed import estimate_speed
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload
from adaptft.requests import TrainRequest
from adaptft.units import GiB

SHAPES = {"qwen2.5-7b": QWEN_7B, "qwen2.5-0.5b": QWEN_05B, "qwen2.5-1.5b": qwen2(1536, 8960, 28, 12, 2, 151936, True)}
RESULTS = Path(__file__).parents[2] / "benchmarks/results/step-memory-2026-11-30.json"
CELLS = [cell for cell in json.loads(RESULTS.read_text())["cells"] if cell["shape"] in SHAPES]
CELL_NAME = ("shape", "method", "fp8", "ckpt", "fused", "transposed_copy", "document_tokens")
H200 = machine("h200")
UNFUSED_CHUNKS_ALIVE = 3 / 2
"""When the cells without fusing were measured, a chunk of logits more stayed alive."""


def _workload(cell) -> Workload:
    model = SHAPES[cell["shape"]]
    rows = cell["T"] // 2048 if cell.get("dense_attention") else 1
    request = TrainRequest(
        model="m", train_type=cell["method"], max_length=cell["T"] // rows, global_batch_size=rows,
        per_device_train_batch_size=rows, packing=True, fp8=cell["fp8"] or False,
    )  # fmt: skip
    setting = settle(H200, model, ALPACA, request)[0]
    precision = precision_candidates(setting.gpu, CPU, model, request, cell["method"])[-1]
    decisions = next(iter(candidates(setting, cell["method"], precision, "adamw"))).decisions
    twice = cell["fp8"] and cell.get("transposed_copy", True)
    chunk_tokens = int(4096 * (1 if cell["fused"] else UNFUSED_CHUNKS_ALIVE))
    measured = {
        "checkpointing": Checkpointing(layers=cell["ckpt"], of=model.num_layers),
        "adapters": AdapterKernels(fused=cell["fused"], transposed_copy=twice),
        "loss": LossKernel(kernel="chunked", chunk_tokens=chunk_tokens),
    }
    decisions = replace(
        decisions, **{name: replace(getattr(decisions, name), value=value) for name, value in measured.items()}
    )
    targets = None if cell["method"] == "full" else resolve_targets(model)
    row_tokens = cell.get("document_tokens", 230)
    rows = replace(ALPACA, num_rows=1000, num_tokens=1000 * row_tokens, longest_row_tokens=row_tokens)
    return Workload(model=model, decisions=decisions, targets=targets, dataset=rows)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: "-".join(str(c.get(k)) for k in CELL_NAME))
def test_the_peak_is_within_two_per_cent_of_the_measured_one(cell):
    predicted = step_memory(_workload(cell), int(139.8 * GiB), on_gpu=True)
    assert predicted.peak_bytes / GiB == pytest.approx(cell["peak"], rel=0.02)


def test_step_times_are_within_twenty_per_cent_and_five_on_average():
    errors = {}
    for cell in CELLS:
        predicted = estimate_speed(_workload(cell), H200, H200.gpus[0], total_steps=1)
        errors["-".join(str(cell.get(k)) for k in CELL_NAME)] = predicted.step_seconds * 1e3 / cell["step_ms"] - 1
    assert max(map(abs, errors.values())) < 0.2, errors
    assert mean(map(abs, errors.values())) < 0.05, errors


def test_a_base_in_fp8_is_loaded_in_16_bit_which_a_lean_step_needs_less_than():
    lean = next(cell for cell in CELLS if cell["fp8"] and cell["ckpt"] == 28 and cell["method"] == "lora")
    whole = estimate_memory(_workload(lean), int(139.8 * GiB), on_gpu=True)
    assert whole.moment == "load"
    assert whole.peak_bytes > 2 * QWEN_7B.num_parameters > step_memory(_workload(lean), 0, on_gpu=True).peak_bytes
