"""Seconds of a training step: each kind of work over the rate at which this device does it.

Matmul time is FLOPs over the rate that large matmuls reach (``policy.ceilings``: measured here, or from the table);
elementwise work is memory traffic in proportion to the saved activations; a floor stands for launching kernels.
First model: its constants were fitted on one H200 (see benchmarks/results).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from adaptft.facts import Ceilings, Gpu, Machine, ModelShape
from adaptft.plans import FUSED_MLP_LAYERS, SpeedEstimate
from adaptft.policy.activations import passed_bytes
from adaptft.policy.ceilings import ceilings
from adaptft.policy.collectives import interconnect
from adaptft.policy.communication import exchanged
from adaptft.policy.storage import weights_bytes
from adaptft.policy.workload import Workload

FP8_GAIN = 1.85
"""FP8 over bf16 in the frozen matmuls of a 7B, quantising not counted."""
TRAFFIC = {"none": 8.5, "peft": 12.0, "peft fp8": 14.0, "fused": 12.3, "fused fp8": 13.0, "none fp8": 19.5}
"""Bytes that norms, activations, residuals and adapters move for each saved byte, both passes together, by whose
adapters there are and the arithmetic: fused layers save fewer bytes; in FP8 each token is quantised before each matmul,
and where whole models train weights and their gradients are too."""
NF4_PASSES = {"bf16": 9.3, "fp8": 6.4}
"""Time of unpacking a weight over the time of reading its packed form once (bitsandbytes' kernel, and ours)."""
DENSE_ATTENTION_SHARE = 0.5
"""Of the matmul rate, where each row is one document and torch's ordinary attention serves: cuDNN's on Hopper."""
LAYER_FLOOR_SECONDS = {
    "none": 2.5e-3, "none fp8": 2.5e-3, "peft": 5.5e-3, "peft fp8": 5.5e-3, "fused": 3.5e-3, "fused fp8": 4.2e-3
}  # fmt: skip
"""Least time of a compiled layer's forward and backward pass, by the same: the host launching its kernels."""
LAYER_TAIL_SECONDS = 0.5e-3
"""What a layer's two passes take on a GPU beside work in proportion to tokens: the last, half-empty wave of each
kernel, and reading weights. It is why one large micro-batch is faster than several small ones."""


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
    elementwise = TRAFFIC[_kernels(work)] * filled * passed_bytes(work) * model.num_layers / rates.memory_bytes
    nf4 = _dequantising_seconds(work, rates)
    attention = _attention_seconds(work, rates) * tokens
    tails = LAYER_TAIL_SECONDS * model.num_layers if found.device == "cuda" else 0.0
    layers = passes * one_pass + elementwise + 2 * nf4 + 3.5 * attention + tails
    floor = (found.layer_seconds or LAYER_FLOOR_SECONDS[_kernels(work)]) * model.num_layers
    recomputed = (
        work.checkpointing.layers / work.checkpointing.of * (one_pass + elementwise / 3 + nf4 + attention + tails / 3)
    )
    head = passes * 2 * _head_weights(model) * tokens * work.trained_share / rates.matmul_flops
    return max(layers, floor) + recomputed + head + _tiling_seconds(work, one_pass, nf4)


def _tiling_seconds(work: Workload, one_pass: float, unpacked: float) -> float:
    """MLPs in tiles: gate and up once more, and each tile unpacks the weights of its three or four passes anew."""
    if not work.mlp_tile_tokens:
        return 0.0
    layers = [row for row in work.model.linears if row.kind != "head"]
    all_ = sum(row.num_weights for row in layers)
    wide = sum(row.num_weights for row in layers if row.name in FUSED_MLP_LAYERS) / all_
    tiles = ceil(work.device_tokens / work.mlp_tile_tokens)
    passes = 2 + work.checkpointing.layers / work.checkpointing.of
    return wide * (2 / 3 * one_pass + unpacked * (tiles * (passes + 2 / 3) - passes))


def _kernels(work: Workload) -> str:
    """A key of ``TRAFFIC``."""
    if work.method.train_type == "full":
        adapters = "none"
    else:
        adapters = "fused" if work.decisions.adapters.value.fused else "peft"
    return f"{adapters} fp8" if work.precision.compute == "fp8" else adapters


def _attention_seconds(work: Workload, rates: _Rates) -> float:
    """Of a token's forward pass: two matmuls over the half of the square below the diagonal; backward is 2.5 times it.

    A mask instead of a kernel that knows of rows and order computes the whole square.
    """
    knows_order = work.decisions.attention.value.implementation == "varlen" or work.sequence_parallel_size > 1
    halves = 1 if knows_order else 2
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
