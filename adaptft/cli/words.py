"""Facts and decisions in words; one function a kind of value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaptft.facts import DatasetShape, Gpu, Machine, ModelShape
from adaptft.plans import (
    SHARDED,
    AdapterKernels,
    Attention,
    Batch,
    Checkpointing,
    Compile,
    LossKernel,
    Method,
    Optimizer,
    Placement,
    Precision,
    Schedule,
)
from adaptft.units import counted, format_bytes, format_count


def machine_words(machine: Machine, nodes: int = 1) -> str:
    """``2 x NVIDIA L4 (22.0 GiB, 21.7 free), 16 cores, 64.0 GiB memory``; of ``nodes`` machines like it."""
    boards = Counter((gpu_words(gpu), gpu.memory_total_bytes, gpu.memory_free_bytes) for gpu in machine.gpus)
    gpus = [
        f"{f'{count} x ' if count > 1 else ''}{name} ({format_bytes(total)}, {format_bytes(free)} free)"
        for (name, total, free), count in boards.items()
    ]
    memory = machine.memory.limit_bytes or machine.memory.total_bytes
    host = f"{machine.cpu.usable_cores:g} cores, {format_bytes(memory)} memory"
    alike = [f"{nodes} machines, each with {gpus[0]}", *gpus[1:]] if nodes > 1 and gpus else gpus
    return ", ".join([*(alike or ["no GPU"]), host])


def gpu_words(gpu: Gpu) -> str:
    """The board's name; of a MIG slice its profile too."""
    return f"MIG slice {gpu.mig.profile} of {gpu.mig.parent}" if gpu.mig else gpu.name


def model_words(model: ModelShape) -> str:
    """``qwen-7b: 7.62 B parameters, 28 layers, hidden size 3584``."""
    active = f" ({format_count(model.num_active_parameters)} active)" if model.moe else ""
    stored = f", stored in {model.quantization or model.stored_dtype}"
    return (
        f"{model.name}: {format_count(model.num_parameters)} parameters{active}, {model.num_layers} layers, "
        f"hidden size {model.hidden_size}{stored}"
    )


def dataset_words(dataset: DatasetShape) -> str:
    """``7473 rows, 1.42 M tokens (0.9 M trained), longest row 1023``."""
    names = [Path(source).name if Path(source).is_absolute() else source for source in dataset.sources]
    sources = f" from {', '.join(names)}" if names else ""
    about, said = ("about ", " (assumed, not measured)") if dataset.assumed else ("", "")
    return (
        f"{about}{dataset.num_rows} rows{sources}, {format_count(dataset.num_tokens)} tokens "
        f"({format_count(dataset.num_trained_tokens)} trained), longest row {dataset.longest_row_tokens} tokens{said}"
    )


def _precision(value: Precision) -> str:
    scaling = ", loss scaling" if value.loss_scaling else ""
    matmul = f", {value.fp32_matmul} for fp32" if value.fp32_matmul == "tf32" else ""
    return f"{value.weights} weights, {value.compute} arithmetic{matmul}{scaling}"


def _method(value: Method) -> str:
    if value.train_type == "full":
        return f"full, weights in {value.base_storage}"
    targets = value.target_regex or ", ".join(value.target_modules)
    base = value.base_storage + (" (scales quantised)" if value.double_quant else "")
    variants = [name for name, on in (("rsLoRA", value.use_rslora), ("DoRA", value.use_dora)) if on]
    numbers = [f"rank {value.lora_rank}", f"alpha {value.lora_alpha:g}"]
    numbers += [f"dropout {value.lora_dropout:g}"] if value.lora_dropout else []
    saved = f"; whole: {', '.join(value.modules_to_save)}" if value.modules_to_save else ""
    return f"{value.train_type}, {', '.join(numbers + variants)}, on {targets}; base in {base}{saved}"


def _placement(value: Placement) -> str:
    if value.strategy == "cpu":
        return "CPU"
    gpus = ", ".join(map(str, value.gpu_indices))
    if value.strategy == "single":
        return f"GPU {gpus}"
    gpus = f"GPUs {_runs(value.gpu_indices)}" if len(value.gpu_indices) > 1 else f"GPU {gpus}"
    machines = f" of each of {value.nodes} machines" if value.nodes > 1 else ""
    shared = f", {value.sequence_parallel_size} to a row" if value.sequence_parallel_size > 1 else ""
    return f"{value.strategy.replace('_', ' ')} over {gpus}{machines}{shared}"


def device_words(value: Placement) -> str:
    """``8 GPUs with fsdp2``, ``16 x 8 GPUs``, ``1 GPU``, ``CPU``."""
    if not value.num_gpus:
        return "CPU"
    machines = f"{value.nodes} x " if value.nodes > 1 else ""
    spread = f" with {value.strategy}" if value.strategy in SHARDED else ""
    shared = f", {value.sequence_parallel_size} to a row" if value.sequence_parallel_size > 1 else ""
    return f"{machines}{counted(len(value.gpu_indices), 'GPU')}{spread}{shared}"


def _runs(numbers: tuple[int, ...]) -> str:
    """``0-7`` for eight in a row, else all of them."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and numbers == tuple(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


def _batch(value: Batch) -> str:
    factors = [str(value.micro_batch_size)]
    if value.gradient_accumulation_steps > 1:
        factors.append(f"{value.gradient_accumulation_steps} accumulated")
    if value.data_parallel_size > 1:
        factors.append(f"{value.data_parallel_size} GPUs")
    product = f"{' x '.join(factors)} = " if len(factors) > 1 else ""
    noun = "sequence" if value.global_batch_size == 1 else "sequences"
    length = f"of {value.max_length} tokens" if value.packing else f"of at most {value.max_length} tokens"
    kind = "packed" if value.packing else "not packed"
    return f"{product}{value.global_batch_size} {noun} {length}, {kind}"


def _checkpointing(value: Checkpointing) -> str:
    aside = ", inputs in host memory" if value.offload else ""
    if value.layers in (0, value.of):
        return f"every layer ({value.of}){aside}" if value.layers else "no layer"
    return f"{value.layers} of {value.of} layers{aside}"


def _attention(value: Attention) -> str:
    return {"varlen": "variable-length kernel", "sdpa": "SDPA with a mask", "eager": "plain matmuls"}[
        value.implementation
    ]


def _loss(value: LossKernel) -> str:
    return (
        f"head and loss fused, at most {value.chunk_tokens} tokens at a time"
        if value.kernel == "chunked"
        else "all logits at once"
    )


def _optimizer(value: Optimizer) -> str:
    return (
        f"{value.name}, learning rate {value.learning_rate:g} ({value.lr_scheduler_type}, "
        f"{counted(value.warmup_steps, 'warm-up step')}), weight decay {value.weight_decay:g}"
    )


def _schedule(value: Schedule) -> str:
    def every(steps: int) -> str:
        return f"every {counted(steps, 'step')}".replace("every 1 step", "every step") if steps else "never"

    epochs = f"{value.num_train_epochs:.3g} epoch{'' if value.num_train_epochs == 1 else 's'}"
    return (
        f"{counted(value.max_steps, 'step')} ({epochs}); evaluation {every(value.eval_steps)}, "
        f"checkpoints {every(value.save_steps)}"
    )


def _compile(value: Compile) -> str:
    return "each decoder layer" if value.enabled else "no"


def _adapter_kernels(value: AdapterKernels) -> str:
    return "fused" if value.fused else "not fused"


_WORDS: dict[type[Any], Callable[[Any], str]] = {
    Precision: _precision,
    Method: _method,
    Placement: _placement,
    Batch: _batch,
    Checkpointing: _checkpointing,
    Attention: _attention,
    LossKernel: _loss,
    Optimizer: _optimizer,
    Schedule: _schedule,
    Compile: _compile,
    AdapterKernels: _adapter_kernels,
}


def decision_words(value: Any) -> str:
    """The value of a decision in words: ``4 x 2 steps = 8 sequences of 2048 tokens, packed``."""
    return _WORDS[type(value)](value)
