"""Seconds of a training step: each kind of work over the rate at which this device does it.

Matmul time is FLOPs over the best measured matmul rate of the card (the dense peak times 0.8 where none is known);
elementwise work is memory traffic in proportion to the saved activations; a floor stands for launching kernels.
First model: its constants were fitted on one H200 (see benchmarks/results).
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import Gpu, ModelShape
from adaptft.plans import SpeedEstimate
from adaptft.policy.gpus import GpuModel, known_gpu
from adaptft.policy.memory import Workload, layer_activation_bytes, weights_bytes

PEAK_SHARE = 0.75
FP8_GAIN = 1.75
"""FP8 over bf16 in the frozen matmuls of a 7B, quantising not counted."""
TRAFFIC = 15.0
"""Bytes that norms, activations, residuals, adapters and attention move for each saved byte, both passes together."""
FP8_TRAFFIC = 19.0
"""The same with each token quantised before each matmul."""
WHOLE_FP8_TRAFFIC = 29.0
"""The same where weights and weight gradients are quantised too, for a saved byte (of fewer, see memory.py)."""
NF4_PASSES = 3.0
"""Bytes moved for a weight that is dequantised: read packed, write and read in 16 bit, in each pass."""
LAYER_FLOOR_SECONDS = {"full": 2.5e-3, "lora": 5.0e-3, "qlora": 6.0e-3}
"""Least time of a compiled layer's forward and backward pass: the host launching its kernels."""


@dataclass(frozen=True, slots=True)
class _Rates:
    matmul_flops: float
    memory_bytes: float


def estimate_speed(work: Workload, gpu: Gpu | None, total_steps: int) -> SpeedEstimate | None:
    """Speed on ``gpu``; None on the CPU and on cards that are not in the table."""
    row = known_gpu(gpu) if gpu else None
    if gpu is None or row is None:
        return None
    rates = _rates(row, gpu, work)
    steps = work.batch.gradient_accumulation_steps
    step = _micro_step_seconds(work, rates) * steps + _accumulation_seconds(work, rates) * (steps - 1)
    step += _optimizer_seconds(work, rates)
    tokens = work.batch.global_batch_size * work.batch.max_length
    flops = training_flops(work.model, work.method.train_type) * work.batch.micro_batch_tokens
    mfu = flops * steps / step / (_peak(row, work) * 1e12 * _share(row, gpu))
    return SpeedEstimate(step_seconds=step, tokens_per_second=tokens / step, mfu=mfu, total_seconds=step * total_steps)


def training_flops(model: ModelShape, train_type: str) -> float:
    """FLOPs a token: 6 a weight that a token passes, 4 where the base is frozen (no weight gradient)."""
    return (6 if train_type == "full" else 4) * _matmul_weights(model)


def _matmul_weights(model: ModelShape) -> int:
    return sum(row.in_features * row.out_features * row.per_token for row in model.linears)


def _head_weights(model: ModelShape) -> int:
    return sum(row.num_weights for row in model.linears if row.kind == "head")


def _peak(row: GpuModel, work: Workload) -> float:
    if work.precision.compute == "fp32":
        return row.tf32_tflops if work.precision.fp32_matmul == "tf32" else row.fp32_tflops
    if work.precision.compute == "fp16":
        return row.fp16_tflops
    return row.bf16_tflops


def _share(row: GpuModel, gpu: Gpu) -> float:
    """The part of the board's processors that a MIG slice has; 1 for a whole board."""
    return 1.0 if gpu.mig is None or not gpu.sm_count else gpu.sm_count / row.sm_count


def _rates(row: GpuModel, gpu: Gpu, work: Workload) -> _Rates:
    peak = _peak(row, work)
    measured = row.matmul_tflops if work.precision.compute != "fp32" else None
    share = _share(row, gpu)
    matmul = (measured * 0.94 if measured else peak * PEAK_SHARE) * 1e12 * share
    return _Rates(matmul_flops=matmul, memory_bytes=row.memory_gb_per_second * 1e9 * 0.88 * share)


def _micro_step_seconds(work: Workload, rates: _Rates) -> float:
    """Layers (matmuls and traffic, or the launch floor), recomputed layers, and the head with its loss."""
    model, tokens = work.model, work.batch.micro_batch_tokens
    passes = 3 if work.method.train_type == "full" else 2
    layer_weights = _matmul_weights(model) - _head_weights(model)
    one_pass = 2 * layer_weights * tokens / rates.matmul_flops
    if work.precision.compute == "fp8":
        one_pass /= FP8_GAIN
    elementwise = _traffic(work) * layer_activation_bytes(work) * model.num_layers / rates.memory_bytes
    nf4 = _dequantising_seconds(work, rates)
    layers = passes * one_pass + elementwise + 2 * nf4
    floor = LAYER_FLOOR_SECONDS[work.method.train_type] * model.num_layers
    recomputed = work.checkpointing.layers / work.checkpointing.of * (one_pass + elementwise / 3 + nf4)
    head = passes * 2 * _head_weights(model) * tokens / rates.matmul_flops
    return max(layers, floor) + recomputed + head


def _traffic(work: Workload) -> float:
    if work.precision.compute != "fp8":
        return TRAFFIC
    return WHOLE_FP8_TRAFFIC if work.method.train_type == "full" else FP8_TRAFFIC


def _dequantising_seconds(work: Workload, rates: _Rates) -> float:
    if work.method.base_storage != "nf4":
        return 0.0
    return NF4_PASSES * weights_bytes(work.model, work.precision, work.method) / rates.memory_bytes


def _accumulation_seconds(work: Workload, rates: _Rates) -> float:
    """Adding a micro-batch's gradients to those before: two reads and a write; adapters are small."""
    if work.method.train_type != "full":
        return 0.0
    return 3 * weights_bytes(work.model, work.precision, work.method) / rates.memory_bytes


def _optimizer_seconds(work: Workload, rates: _Rates) -> float:
    """Weights, gradients and states read, weights and states written; adapters are small."""
    if work.method.train_type != "full":
        return 1e-3
    return 7 * weights_bytes(work.model, work.precision, work.method) / rates.memory_bytes
