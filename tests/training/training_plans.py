"""Plans and rows for the training tests: small, on the CPU, everything stated here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from adaptft import plans
from adaptft.facts import Cpu, DatasetShape, Gpu, HostMemory, Machine, ModelShape, Software
from adaptft.plans import Decision, TrainPlan
from adaptft.reports import DataReport
from adaptft.requests import TrainRequest
from adaptft.training.assembly import build_trainer
from adaptft.training.batches import Rows
from adaptft.training.incidents import Journal
from adaptft.training.rows import TrainingRows
from adaptft.training.trainer import SupervisedTrainer

CPU_ONLY = Machine(
    gpus=(),
    cpu=Cpu(model_name="a cpu", architecture="x86_64", logical_cores=2, physical_cores=1, usable_cores=1.0),
    memory=HostMemory(total_bytes=1 << 34, available_bytes=1 << 33),
    software=Software(python="3.11"),
)
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DECISIONS: dict[str, Any] = {
    "precision": plans.Precision(weights="fp32", compute="fp32", fp32_matmul="ieee"),
    "method": plans.Method(
        train_type="lora", base_storage="fp32", lora_rank=4, lora_alpha=8.0, target_modules=ALL_LINEAR,
        skipped_modules=("lm_head",),
    ),
    "placement": plans.Placement(strategy="cpu"),
    "batch": plans.Batch(
        micro_batch_size=2, gradient_accumulation_steps=1, data_parallel_size=1, global_batch_size=2,
        eval_batch_size=2, max_length=64, packing=True,
    ),
    "checkpointing": plans.Checkpointing(layers=0, of=4),
    "attention": plans.Attention(implementation="sdpa"),
    "loss": plans.LossKernel(kernel="chunked", chunk_tokens=48),
    "optimizer": plans.Optimizer(
        name="adamw", learning_rate=5e-3, weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.95, max_grad_norm=1.0,
        lr_scheduler_type="cosine", warmup_steps=1,
    ),
    "schedule": plans.Schedule(
        max_steps=6, num_train_epochs=0, held_out_ratio=0.05, eval_steps=0, save_steps=0, logging_steps=1
    ),
    "compile": plans.Compile(enabled=False),
    "adapters": plans.AdapterKernels(fused=False),
}  # fmt: skip
FULL = plans.Method(train_type="full", base_storage="fp32")


def a_plan(
    model: Path, *, request: dict[str, Any] | None = None, machine: Machine = CPU_ONLY, **changed: Any
) -> TrainPlan:
    """A CPU plan; ``changed`` replaces whole decisions by value, or some fields of one when given as a dict."""
    values = dict(DECISIONS)
    for name, value in changed.items():
        values[name] = dataclasses.replace(values[name], **value) if isinstance(value, dict) else value
    decisions = plans.Decisions(**{name: Decision(value, "stated by the test") for name, value in values.items()})
    return TrainPlan(
        machine=machine,
        model=_SHAPE,
        dataset=DatasetShape(num_rows=1, num_tokens=1, num_trained_tokens=1, longest_row_tokens=1),
        request=TrainRequest(model=str(model), **({"report_to": ("none",)} | (request or {}))),
        decisions=decisions,
        memory=_memory(),
        speed=plans.SpeedEstimate(step_seconds=0.1, tokens_per_second=1000.0, mfu=None, total_seconds=1.0),
    )


def _memory() -> plans.MemoryEstimate:
    return plans.MemoryEstimate(
        weights_bytes=1 << 24, adapters_bytes=0, gradients_bytes=0, optimizer_bytes=0, activations_bytes=1 << 24,
        logits_bytes=0, workspace_bytes=0, framework_bytes=0, capacity_bytes=1 << 33,
    )  # fmt: skip


_SHAPE = ModelShape(
    name="tiny", model_type="qwen2", architecture="Qwen2ForCausalLM", hidden_size=256, intermediate_size=512,
    num_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=8320,
    max_position_embeddings=4096, tie_word_embeddings=True, linears=(), num_parameters=1, num_active_parameters=1,
    stored_dtype="fp32",
)  # fmt: skip


def a_gpu(index: int = 0, name: str = "NVIDIA A10", memory_total_bytes: int = 24 << 30) -> Gpu:
    return Gpu(
        index=index, name=name, compute_capability=(8, 6), memory_total_bytes=memory_total_bytes,
        memory_free_bytes=memory_total_bytes,
    )  # fmt: skip


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Documents of tokens that a small model can learn: each counts up from a random start."""
    generator = np.random.default_rng(seed)
    return [
        [int(start + i) for i in range(n)]
        for n, start in zip(lengths, generator.integers(10, 200, len(lengths)), strict=True)
    ]


def single_rows(lengths: Sequence[int], prompt: int = 2, seed: int = 0) -> Dataset:
    """Unpacked rows; the first ``prompt`` tokens of each are not trained."""
    ids = documents(lengths, seed)
    return Dataset.from_dict({"input_ids": ids, "trained": [[i >= prompt for i in range(len(row))] for row in ids]})


def packs(groups: Sequence[Sequence[int]], prompt: int = 2, seed: int = 0) -> Dataset:
    """Packed rows: each group of lengths is one pack."""
    flat = documents([n for group in groups for n in group], seed)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "position_ids": []}
    for group in groups:
        taken, flat = flat[: len(group)], flat[len(group) :]
        columns["input_ids"].append([token for row in taken for token in row])
        columns["labels"].append([t if i >= max(prompt, 1) else -100 for row in taken for i, t in enumerate(row)])
        columns["position_ids"].append([i for row in taken for i in range(len(row))])
    return Dataset.from_dict(columns)


def a_trainer(
    plan: TrainPlan, folder: Path, rows: Dataset, *, evaluation: Dataset | None = None,
    journal: Journal | None = None,
) -> SupervisedTrainer:  # fmt: skip
    """A trainer over ready rows, as ``run`` builds it."""
    ready = TrainingRows(
        training=Rows(rows),
        evaluation=None if evaluation is None else Rows(evaluation),
        report=DataReport(dialect="made by the test", num_accepted=len(rows), num_rejected=0),
        notes=(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    return build_trainer(plan, folder, Path(plan.request.model), ready, journal=journal)


def losses(trainer: SupervisedTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "seconds" in entry and "loss" in entry]
