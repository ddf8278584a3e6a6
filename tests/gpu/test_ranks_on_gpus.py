"""Two GPUs over NCCL follow one: replicas, shards, and rows that both share, in every storage of the base."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptft import data, models, plan_training, probe, shapes, training
from adaptft.errors import TrainingError
from adaptft.facts import Machine
from adaptft.plans import AdapterKernels, Attention, Decision, TrainPlan
from adaptft.records import read_json, write_json
from adaptft.reports import RunReport
from adaptft.requests import TrainRequest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
]
TESTS = Path(__file__).parents[1]
LORA: dict[str, Any] = {"train_type": "lora", "fp8": False}
FULL: dict[str, Any] = {"train_type": "full", "fp8": False}
EXACT = {"torch_dtype": "float32", "attn_impl": "sdpa"}

# name: (wishes, strategy, ranks that share a row, largest relative distance of a loss from one GPU's)
# replicas first: accelerate leaves a process that has sharded once ready for nothing else
CASES: dict[str, tuple[dict[str, Any], str, int, float]] = {
    "ddp, fused lora": (LORA, "ddp", 1, 0.01),
    "ddp, lora on fp8": ({"train_type": "lora", "fp8": True}, "ddp", 1, 0.02),
    "ddp, qlora": ({"train_type": "qlora", "fp8": False}, "ddp", 1, 0.01),
    "ddp, full fp32": (FULL | EXACT, "ddp", 1, 1e-4),
    "fsdp2, full fp32": (FULL | EXACT, "fsdp2", 1, 1e-4),
    "zero2, full fp32": (FULL | EXACT, "zero2", 1, 1e-4),
    "fsdp2, full, 16-bit arithmetic": (FULL, "fsdp2", 1, 0.02),
    "fsdp2, full, 16-bit, compiled": (FULL | {"torch_dtype": "bfloat16", "torch_compile": True}, "fsdp2", 1, 0.02),
    "fsdp2, full, fp8": ({"train_type": "full", "fp8": True}, "fsdp2", 1, 0.03),
    "fsdp2, full, checkpointed": (FULL | {"gradient_checkpointing": True}, "fsdp2", 1, 0.02),
    "fsdp2, lora": (LORA, "fsdp2", 1, 0.01),
    "fsdp2, lora, compiled": (LORA | {"torch_compile": True}, "fsdp2", 1, 0.01),
    "fsdp2, lora on fp8": ({"train_type": "lora", "fp8": True}, "fsdp2", 1, 0.02),
    "fsdp2, qlora": ({"train_type": "qlora", "fp8": False}, "fsdp2", 1, 0.02),
    "shared rows, full": (FULL | EXACT | {"packing": False}, "fsdp2", 2, 1e-3),
    "shared rows, lora, checkpointed": (
        LORA | {"packing": False, "attn_impl": "sdpa", "gradient_checkpointing": True}, "fsdp2", 2, 0.01,
    ),
}  # fmt: skip
RESUMED = "fsdp2, full fp32"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ("apple", "pear", "plum", "fig", "lime", "date")
    lines = [{"instruction": f"Say {word} {n}.", "output": f"{word} " * (n + 1)} for word in words for n in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def alone(machine: Machine, model: Path, rows: Path, wishes: dict[str, Any]) -> TrainPlan:
    """The plan for one GPU."""
    request = TrainRequest(
        model=str(model), dataset=(str(rows),), max_steps=6, learning_rate=1e-4, global_batch_size=4, max_length=256,
        per_device_train_batch_size=4, save_steps=3, split_dataset_ratio=0.05, eval_steps=3, num_gpus=1,
        report_to=("none",), **({"torch_compile": False, "packing": True, "gradient_checkpointing": False} | wishes),
    )  # fmt: skip
    tokenized = data.tokenize(data.training_settings(request, request.dataset), models.load_tokenizer(model))
    shape = shapes.model_shape(models.read_config(str(model)), "tiny")
    return plan_training(machine, shape, tokenized.shape, request)


def together(plan: TrainPlan, strategy: str, sharing: int) -> TrainPlan:
    """The same run on two GPUs."""
    decisions, batch = plan.decisions, plan.decisions.batch.value
    placement = dataclasses.replace(
        decisions.placement.value, strategy=strategy, gpu_indices=(0, 1), device_map=None,  # type: ignore[arg-type]
        sequence_parallel_size=sharing,
    )  # fmt: skip
    size = placement.data_parallel_size
    values: dict[str, Any] = {
        "placement": placement,
        "batch": dataclasses.replace(batch, micro_batch_size=batch.micro_batch_size // size, data_parallel_size=size),
    }
    if placement.is_sharded:
        values["adapters"] = AdapterKernels(fused=False)
    if sharing > 1:
        values["attention"] = Attention(implementation="sdpa")
    changed = {name: Decision(value, "stated by the test") for name, value in values.items()}
    return dataclasses.replace(plan, decisions=dataclasses.replace(decisions, **changed))


@pytest.fixture(scope="module")
def folder(tiny_qwen2: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, those of one GPU in NUMBER-1 and those of two in NUMBER-2."""
    folder, machine, words = tmp_path_factory.mktemp("ranks"), probe(), []
    for number, (wishes, strategy, sharing, _) in enumerate(CASES.values()):
        plan = alone(machine, tiny_qwen2, rows, wishes)
        training.train(plan, folder / f"{number}-1")
        write_json(folder / f"{number}.json", together(plan, strategy, sharing))
        words += [str(folder / f"{number}.json"), str(folder / f"{number}-2")]
    torch.cuda.empty_cache()
    script = TESTS / "training" / "many_runs.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, *words], check=False, env=os.environ | {"PYTHONPATH": str(TESTS.parent)})
    return folder


def report(folder: Path) -> RunReport:
    return read_json(RunReport, folder / "report.json", error=TrainingError, what="report", fix="")


def losses(folder: Path) -> list[float]:
    found = report(folder)
    assert found.final_eval_loss is not None
    return [*(step.loss for step in found.steps), found.final_eval_loss]


@pytest.mark.parametrize("name", CASES)
def test_two_gpus_follow_the_losses_of_one(name: str, folder: Path) -> None:
    number, distance = list(CASES).index(name), CASES[name][3]
    assert losses(folder / f"{number}-2") == pytest.approx(losses(folder / f"{number}-1"), rel=distance)
    assert sum(s.num_tokens for s in report(folder / f"{number}-2").steps) == report(folder / f"{number}-1").num_tokens


def test_one_gpu_goes_on_where_two_stopped(folder: Path, tiny_qwen2: Path, rows: Path, tmp_path: Path) -> None:
    number = list(CASES).index(RESUMED)
    shutil.copytree(folder / f"{number}-2" / "checkpoint-3", tmp_path / "checkpoint-3")
    shutil.copy(folder / f"{number}-2" / "plan.json", tmp_path)
    wishes = CASES[RESUMED][0] | {"resume_from_checkpoint": "auto"}
    training.train(alone(probe(), tiny_qwen2, rows, wishes), tmp_path)
    assert losses(tmp_path) == pytest.approx(losses(folder / f"{number}-1"), rel=1e-4)


def test_a_shard_is_half_of_the_states(folder: Path) -> None:
    replicas, shards = (list(CASES).index(name) for name in ("ddp, full fp32", "fsdp2, full fp32"))
    whole, half = (report(folder / f"{number}-2").peak_memory for number in (replicas, shards))
    assert whole is not None
    assert half is not None
    assert half.measured < whole.measured
