"""A cell of planner_accuracy.py planned, and run with adaptft's own trainer on random weights."""

from __future__ import annotations

import gc
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner_cells import SEED, STEPS, Cell, request

from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.plans import DTYPE_NAMES, Checkpointing, Decision, TrainPlan
from adaptft.policy import plan_training
from adaptft.policy.memory import estimate_memory
from adaptft.policy.speed import estimate_speed
from adaptft.policy.targets import resolve_targets
from adaptft.policy.workload import Workload


def plan(cell: Cell, machine: Machine, model: ModelShape, data: DatasetShape) -> TrainPlan:
    """The policy's plan; where some layers are to be checkpointed, with half of them and predicted again."""
    made = plan_training(machine, model, data, request(cell))
    if cell.checkpointing != "some":
        return made
    half = Checkpointing(layers=model.num_layers // 2, of=model.num_layers)
    decisions = replace(made.decisions, checkpointing=Decision(half, "half of them, for the benchmark", "user"))
    targets = None if cell.train_type == "full" else resolve_targets(model, (), ())
    work = Workload(model=model, decisions=decisions, targets=targets, dataset=data)
    on_gpu = bool(machine.gpus)
    memory = estimate_memory(work, made.memory.capacity_bytes, on_gpu=on_gpu)
    speed = estimate_speed(work, machine, machine.gpus[0] if on_gpu else None, STEPS)
    return replace(made, decisions=decisions, memory=memory, speed=speed, fits=True)


def random_base(builder: Any, made: TrainPlan, name: str) -> Any:
    """The model with random weights, stored as planned, where the plan has it loaded."""
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
    if decisions.adapters.value.by_layer:
        model.to("cpu")
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
    from adaptft.training.arguments import training_arguments
    from adaptft.training.assembly import collator, prepare_model
    from adaptft.training.batches import Rows
    from adaptft.training.identification import identify
    from adaptft.training.incidents import Journal
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
        memory = metrics.PeakMemory(on_gpu=made.uses_gpu, model_bytes=0 if made.uses_gpu else weight_bytes(base))
        trainer = SupervisedTrainer(
            made, prepare_model(made, base, training.training),
            training_arguments(made, Path(folder), evaluates=False),
            collator=collator(made), train_rows=training.training, eval_rows=None,
            identity=identify(made, named, training), journal=Journal(),
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
