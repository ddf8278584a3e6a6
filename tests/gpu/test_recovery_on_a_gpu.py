"""Memory that really runs out on a GPU, and steps that are skipped without the host looking."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptft import data, models, plan_training, probe, shapes, training
from adaptft.reports import RunReport
from adaptft.requests import TrainRequest
from adaptft.training import guarding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [{"instruction": f"Count to {n}.", "output": " ".join(map(str, range(n)))} for n in range(20, 220)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def train(model: Path, rows: Path, output: Path, **wishes: Any) -> RunReport:
    request = TrainRequest(
        model=str(model), dataset=(str(rows),), max_steps=5, learning_rate=1e-4, global_batch_size=16, max_length=2048,
        per_device_train_batch_size=16, torch_dtype="float32", packing=True, torch_compile=False, train_type="lora",
        gradient_checkpointing=False, report_to=("none",), **wishes,
    )  # fmt: skip
    tokenized = data.tokenize(data.DataSettings(sources=request.dataset), models.load_tokenizer(model))
    shape = shapes.model_shape(models.read_config(str(model)), "tiny")
    return training.train(plan_training(probe(), shape, tokenized.shape, request), output)


def test_a_run_with_too_little_memory_has_the_losses_of_one_with_enough(
    tiny_qwen2: Path, rows: Path, tmp_path: Path
) -> None:
    whole = train(tiny_qwen2, rows, tmp_path / "whole")
    assert whole.peak_memory is not None
    assert whole.incidents == ()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * whole.peak_memory.measured / total)
    try:
        cut = train(tiny_qwen2, rows, tmp_path / "cut")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert {incident.kind for incident in cut.incidents} == {"out_of_memory"}
    assert next(i.step for i in cut.incidents) == 0, "found before the first step"
    assert [s.loss for s in cut.steps] == pytest.approx([s.loss for s in whole.steps], rel=1e-5)
    assert cut.peak_memory is not None
    assert cut.peak_memory.measured < 0.6 * whole.peak_memory.measured


@pytest.mark.parametrize(("norm", "moves"), [(1.0, True), (math.nan, False), (math.inf, False)])
def test_the_fused_optimizer_skips_steps_without_numbers_on_the_device(norm: float, moves: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    for value, expected in ((1.0, True), (norm, moves), (1.0, True)):
        before = weight.detach().clone()
        steps = float(optimizer.state[weight]["step"]) if optimizer.state else 0.0
        weight.grad = torch.full_like(weight, value)
        guarding.guard_step(optimizer, [weight], torch.tensor(value, device="cuda"), None)
        assert weight.grad is not None, "the host has not looked"
        optimizer.step()
        assert bool((weight != before).all()) == expected
        assert float(optimizer.state[weight]["step"]) == steps + expected
        assert bool(torch.isfinite(optimizer.state[weight]["exp_avg"]).all())
