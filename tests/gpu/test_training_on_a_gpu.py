"""Every way to train that only a GPU has, through the real policy, on a tiny model: the loss falls, near FP32's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import models_factory
import pytest
import torch
from datasets import Dataset

from adaptft import data, models, plan_training, probe, shapes, training
from adaptft.facts import DatasetShape
from adaptft.kernels.frozen_linear import FrozenLinear
from adaptft.models import load_for_training
from adaptft.plans import Decision, Placement, TrainPlan
from adaptft.reports import RunReport
from adaptft.requests import TrainRequest
from adaptft.training.adapters import prepare
from adaptft.training.assembly import build_model
from adaptft.training.batches import Rows
from adaptft.training.losses import _trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

# name: (wishes, largest relative distance of the first loss from FP32's)
WAYS: dict[str, tuple[dict[str, Any], float]] = {
    "fp32 lora": ({"train_type": "lora", "torch_dtype": "float32"}, 1e-3),
    "bf16 lora": ({"train_type": "lora", "torch_dtype": "bfloat16"}, 0.01),
    "fp16 lora, loss scaling": ({"train_type": "lora", "torch_dtype": "float16"}, 0.01),
    "fp8 lora": ({"train_type": "lora", "fp8": True}, 0.02),
    "bf16 lora, padded rows": ({"train_type": "lora", "torch_dtype": "bfloat16", "packing": False}, 0.01),
    "bf16 lora, rows of changing length, compiled": (
        {"train_type": "lora", "packing": False, "torch_compile": True},
        0.01,
    ),
    "bf16 lora, every layer checkpointed": ({"train_type": "lora", "gradient_checkpointing": True}, 0.01),
    "qlora": ({"train_type": "qlora"}, 0.1),
    "full, fp32 weights": ({"train_type": "full"}, 0.01),
    "full, bf16 weights": ({"train_type": "full", "torch_dtype": "bfloat16"}, 0.01),
    "full, fp8, fp32 weights": ({"train_type": "full", "fp8": True}, 0.03),
    "full, fp8, bf16 weights, compiled": (
        {"train_type": "full", "fp8": True, "torch_dtype": "bfloat16", "torch_compile": True},
        0.03,
    ),
    "full, fp8, rows of changing length": ({"train_type": "full", "fp8": True, "packing": False}, 0.03),
    "full, 8-bit states": ({"train_type": "full", "torch_dtype": "bfloat16", "optim": "adamw_8bit"}, 0.01),
    "full, paged 8-bit states": ({"train_type": "full", "optim": "paged_adamw_8bit"}, 0.01),
    "bf16 lora, compiled": ({"train_type": "lora", "torch_compile": True}, 0.01),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ("apple", "pear", "plum", "fig", "lime", "date")
    lines = [{"instruction": f"Say {word} {n}.", "output": f"{word} {n}"} for word in words for n in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def train(model: Path, rows: Path, output: Path, **wishes: Any) -> RunReport:
    request = TrainRequest(
        model=str(model), dataset=(str(rows),), max_steps=8, learning_rate=2e-3, global_batch_size=4, max_length=256,
        report_to=("none",), **({"torch_compile": False, "packing": True} | wishes),
    )  # fmt: skip
    tokenized = data.tokenize(data.DataSettings(sources=request.dataset), models.load_tokenizer(model))
    shape = shapes.model_shape(models.read_config(str(model)), "tiny")
    return training.train(plan_training(probe(), shape, tokenized.shape, request), output)


@pytest.fixture(scope="module")
def exact(tiny_qwen2: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of the first step in FP32, packed, with a mask: what all others stand beside."""
    wishes = {"train_type": "lora", "torch_dtype": "float32", "attn_impl": "sdpa"}
    return train(tiny_qwen2, rows, tmp_path_factory.mktemp("exact") / "run", **wishes).steps[0].loss


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_begins_where_fp32_does_and_falls(
    way: str, exact: float, tiny_qwen2: Path, rows: Path, tmp_path: Path
) -> None:
    wishes, distance = WAYS[way]
    report = train(tiny_qwen2, rows, tmp_path / "run", **wishes)
    losses = [step.loss for step in report.steps]
    if wishes.get("packing") is not False:  # other rows stand in a step of padded rows
        assert losses[0] == pytest.approx(exact, rel=distance)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    assert report.peak_memory is not None
    assert report.peak_memory.measured > 0


@pytest.mark.parametrize("count", [0, 5])
def test_trained_rows_are_found_without_waiting_for_the_gpu(count: int) -> None:
    labels = torch.full((64,), -100, device="cuda")
    labels[10 : 10 + count] = 3
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = _trained(labels, count)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.tolist() == list(range(10, 10 + count))


@pytest.fixture
def large(tmp_path: Path) -> tuple[TrainPlan, Path, Rows]:
    """A plan for a model of 271 M parameters in FP8, its folder, and a few rows."""
    size = {"num_hidden_layers": 16, "hidden_size": 1024, "intermediate_size": 4096, "head_dim": 128}
    path = models_factory.build("tiny-qwen2", tmp_path / "model", num_attention_heads=8, num_key_value_heads=8, **size)
    shape = shapes.model_shape(models.read_config(str(path)), "large")
    rows = DatasetShape(num_rows=4, num_tokens=256, num_trained_tokens=256, longest_row_tokens=64)
    request = TrainRequest(model=str(path), train_type="lora", fp8=True, max_steps=1, max_length=64)
    plan = plan_training(probe(), shape, rows, request)
    once = replace(plan.decisions.adapters.value, fused=False, transposed_copy=False)
    decisions = replace(plan.decisions, adapters=Decision(once, "so that less is left to see"))
    table = Dataset.from_dict({"input_ids": [[7] * 64] * 4, "trained": [[True] * 64] * 4})
    return replace(plan, decisions=decisions), path, Rows(table)


def test_no_gpu_holds_a_base_in_fp8_in_16_bit(large: tuple[TrainPlan, Path, Rows]) -> None:
    """Its layers come one after the other."""
    plan, path, rows = large
    assert plan.decisions.adapters.value.by_layer
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = build_model(plan, path, rows)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"cuda"}
    assert torch.cuda.max_memory_allocated() - before < 0.75 * 2 * plan.model.num_parameters


def test_what_is_to_be_sharded_is_rounded_alike_and_back_on_the_host(large: tuple[TrainPlan, Path, Rows]) -> None:
    plan, path, rows = large
    sharded = replace(plan.decisions, placement=Decision(Placement(strategy="fsdp2", gpu_indices=(0,)), "as a test"))
    here, there = (
        prepare(load_for_training(plan, path), decisions, rows, torch.device("cuda"))
        for decisions in (plan.decisions, sharded)
    )
    assert {tensor.device.type for tensor in (*there.parameters(), *there.buffers())} == {"cpu"}
    layers = {name: module for name, module in here.named_modules() if isinstance(module, FrozenLinear)}
    assert len(layers) == 16 * 7
    for name, layer in layers.items():
        expected, found = (part.frozen().tensors[0].cpu() for part in (layer, there.get_submodule(name)))
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), name
