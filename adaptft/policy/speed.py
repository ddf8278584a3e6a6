"""Seconds of a training step: each kind of work over the rate at which this device does it.

Matmul time is FLOPs over the rate that large matmuls reach (``policy.ceilings``: measured here, or from the table);
elementwise work is memory traffic in proportion to the saved activations; a floor stands for launching kernels.
First model: its constants were fitted on one H200 (see benchmarks/results).
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import Ceilings, Gpu, Machine, ModelShape
from adaptft.plans import SpeedEstimate
from adaptft.policy.activations import layer_activation_bytes
from adaptft.policy.ceilings import ceilings
from adaptft.policy.collectives import interconnect
from adaptft.policy.communication import exchanged
from adaptft.policy.storage import weights_bytes
from adaptft.policy.workload import Workload

FP8_GAIN = 1.75
"""FP8 over bf16 in the frozen matmuls of a 7B, quantising not counted."""
TRAFFIC = {(False, "bf16"): 15.5, (False, "fp8"): 18.0, (True, "bf16"): 18.0, (True, "fp8"): 17.5}
"""Bytes that norms, activations, residuals and adapters move for each saved byte, both passes together, by (fused,
arithmetic): fused layers save fewer bytes; in FP8 each token is quantised before each matmul."""
WHOLE_FP8_TRAFFIC = 23.5
"""The same where whole models train in FP8: weights and their gradients are quantised too, and fewer bytes saved."""
NF4_PASSES = {"bf16": 6.0, "fp8": 3.5}
"""Time of unpacking a weight over the time of reading its packed form once (bitsandbytes' kernel, and ours)."""
DENSE_ATTENTION_SHARE = 0.5
"""Of the matmul rate, where each row is one document and torch's ordinary attention serves: cuDNN's on Hopper."""
LAYER_FLOOR_SECONDS = {"full": 2.5e-3, "lora": 5.0e-3, "qlora": 6.0e-3}
"""Least time of a compiled layer's forward and backward pass: the host launching its kernels."""


@dataclass(frozen=True, slots=True)
class _Rates:
    matmul_flops: float
    memory_bytes: float
    attention_flops: float


def estimate_speed(
    work: Workload, machine: Machine, gpu: Gpu | None, total_steps: int, network_gbps: float | None = None
) -> SpeedEstimate | None:
    """Speed on ``gpu`` (the CPU where it is None); None where nobody knows the device's rates.

    ``network_gbps`` is the user's number for the network of a machine; without one it is assumed.
    """
    found = ceilings(machine, gpu)
    kind = _multiplied(work)
    if found is None or kind not in found.matmul_flops:
        return None
    matmul = found.matmul_flops[kind]
    rates = _Rates(matmul, found.memory_bytes_per_second, found.attention_flops or matmul)
    steps = work.batch.gradient_accumulation_steps
    micro_step = _micro_step_seconds(work, rates, found)
    joined = interconnect(machine, work.decisions.placement.value, network_gbps)
    exchange = exchanged(work, joined, micro_step, rates.memory_bytes)
    step = micro_step * steps + _accumulation_seconds(work, rates) * (steps - 1)
    step += exchange.waiting + _optimizer_seconds(work, rates)
    tokens = work.batch.global_batch_size * work.sequence_tokens
    return SpeedEstimate(
        step_seconds=step,
        tokens_per_second=tokens / step,
        mfu=_utilisation(work, found, kind, step),
        total_seconds=step * total_steps,
        waiting_seconds=exchange.waiting,
        communication_seconds=exchange.total,
    )


def _multiplied(work: Workload) -> str:
    """The key of the ceilings: FP8 is counted from bf16's rate."""
    if work.precision.compute == "fp32":
        return "tf32" if work.precision.fp32_matmul == "tf32" else "fp32"
    return work.precision.autocast


def _utilisation(work: Workload, found: Ceilings, kind: str, step_seconds: float) -> float | None:
    peak = found.peak_flops.get(kind)
    tokens = work.batch.micro_batch_size * work.sequence_tokens / work.sequence_parallel_size
    flops = training_flops(work.model, work.method.train_type) * tokens
    return flops * work.batch.gradient_accumulation_steps / step_seconds / peak if peak else None


def training_flops(model: ModelShape, train_type: str) -> float:
    """FLOPs a token: 6 a weight that a token passes, 4 where the base is frozen (no weight gradient)."""
    return (6 if train_type == "full" else 4) * _matmul_weights(model)


def _matmul_weights(model: ModelShape) -> int:
    return sum(row.in_features * row.out_features * row.per_token for row in model.linears)


def _head_weights(model: ModelShape) -> int:
    return sum(row.num_weights for row in model.linears if row.kind == "head")


def _micro_step_seconds(work: Workload, rates: _Rates, found: Ceilings) -> float:
    """Layers (matmuls and traffic, or the launch floor), recomputed layers, and the head with its loss."""
    model, tokens = work.model, work.computed_tokens
    filled = tokens / work.device_tokens
    passes = 3 if work.method.train_type == "full" else 2
    layer_weights = _matmul_weights(model) - _head_weights(model)
    one_pass = 2 * layer_weights * tokens / rates.matmul_flops
    if work.precision.compute == "fp8":
        one_pass /= FP8_GAIN
    elementwise = _traffic(work) * filled * layer_activation_bytes(work) * model.num_layers / rates.memory_bytes
    nf4 = _dequantising_seconds(work, rates)
    attention = _attention_seconds(work, rates) * tokens
    layers = passes * one_pass + elementwise + 2 * nf4 + 3.5 * attention
    floor = (found.layer_seconds or LAYER_FLOOR_SECONDS[work.method.train_type]) * model.num_layers
    recomputed = work.checkpointing.layers / work.checkpointing.of * (one_pass + elementwise / 3 + nf4 + attention)
    head = passes * 2 * _head_weights(model) * tokens / rates.matmul_flops
    return max(layers, floor) + recomputed + head


def _traffic(work: Workload) -> float:
    fp8 = work.precision.compute == "fp8"
    if fp8 and work.method.train_type == "full":
        return WHOLE_FP8_TRAFFIC
    return TRAFFIC[work.decisions.adapters.value.fused, "fp8" if fp8 else "bf16"]


def _attention_seconds(work: Workload, rates: _Rates) -> float:
    """Of a token's forward pass: two matmuls over the half of the square below the diagonal; backward is 2.5 times it.

    A mask instead of a kernel that knows of rows and order computes the whole square.
    """
    halves = 1 if work.decisions.attention.value.implementation == "varlen" else 2
    flops = 2 * halves * work.attended_tokens * work.model.query_size * work.model.num_layers
    alone = work.row_tokens is not None and work.row_tokens >= work.batch.max_length
    return flops / max(rates.attention_flops, DENSE_ATTENTION_SHARE * rates.matmul_flops if alone else 0)


def _dequantising_seconds(work: Workload, rates: _Rates) -> float:
    if work.method.base_storage != "nf4":
        return 0.0
    passes = NF4_PASSES["fp8" if work.precision.compute == "fp8" else "bf16"]
    return passes * weights_bytes(work.model, work.precision, work.method) / rates.memory_bytes


def _accumulation_seconds(work: Workload, rates: _Rates) -> float:
    """Adding a micro-batch's gradients to those before: two reads and a write; adapters are small."""
    if work.method.train_type != "full":
        return 0.0
    return 3 * _own_weights_bytes(work) / rates.memory_bytes


def _optimizer_seconds(work: Workload, rates: _Rates) -> float:
    """Weights, gradients and states read, weights and states written; adapters are small."""
    if work.method.train_type != "full":
        return 1e-3
    return 7 * _own_weights_bytes(work) / rates.memory_bytes


def _own_weights_bytes(work: Workload) -> float:
    """Of a device: all of them, or its shard."""
    whole = weights_bytes(work.model, work.precision, work.method)
    return whole / work.decisions.placement.value.num_gpus if work.is_sharded else whole
