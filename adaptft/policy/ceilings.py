"""The rates that a step's time is divided by: measured on this machine, or the table's with a share for reality."""

from __future__ import annotations

from adaptft.facts import Ceilings, Gpu, Machine
from adaptft.policy.gpu_table import GpuModel
from adaptft.policy.gpus import known_gpu
from adaptft.units import GiB

PEAK_SHARE = 0.75
"""What large matmuls reach of the dense peak, where nobody measured the board."""
MATMUL_SHARE = 0.87
"""What a model's own matmuls reach of the best one that was measured on the board."""
BANDWIDTH_SHARE = 0.88
"""What kernels reach of the memory's bandwidth (an H200 copies at 4.27 of 4.8 TB/s)."""
ATTENTION_SHARE, ATTENTION_SHARE_OF_HOPPER = 0.6, 0.3
"""What causal flash attention reaches of the matmul rate, forward and backward: Ampere's kernels feed Hopper's tensor
cores badly (223 of 731 TFLOP/s on an H200); elsewhere as published for A100."""
FROM_TABLE = "the table of GPUs"


def ceilings(machine: Machine, gpu: Gpu | None) -> Ceilings | None:
    """Of ``gpu``, or of the CPU where it is None; None where neither a measurement nor the table knows them."""
    if machine.ceilings is not None and machine.ceilings.device == ("cpu" if gpu is None else "cuda"):
        return machine.ceilings
    row = known_gpu(gpu) if gpu is not None else None
    if gpu is None or row is None:
        return None
    if gpu.mig is None:
        return table_ceilings(row)
    processors = (gpu.sm_count or row.sm_count) / row.sm_count
    return table_ceilings(row, processors, min(1.0, gpu.memory_total_bytes / (row.memory_gib * GiB)))


def table_ceilings(row: GpuModel, share: float = 1.0, memory_share: float = 1.0) -> Ceilings:
    """Of a board of ``row``, or of a slice, which has shares of the SMs, and of the memory with its bandwidth."""
    sixteen = row.matmul_tflops * MATMUL_SHARE if row.matmul_tflops else None
    peaks = peak_tflops(row)
    reached = {kind: rate * PEAK_SHARE for kind, rate in peaks.items() if rate}
    if sixteen is not None:
        reached |= {kind: sixteen for kind in ("fp16", "bf16") if peaks[kind]}
    matmul = (sixteen or peaks["fp16"] * PEAK_SHARE) * 1e12 * share
    hopper = row.compute_capability[0] >= 9
    return Ceilings(
        attention_flops=matmul * (ATTENTION_SHARE_OF_HOPPER if hopper else ATTENTION_SHARE),
        matmul_flops={kind: rate * 1e12 * share for kind, rate in reached.items()},
        peak_flops={kind: rate * 1e12 * share for kind, rate in peaks.items() if rate},
        memory_bytes_per_second=row.memory_gb_per_second * 1e9 * BANDWIDTH_SHARE * memory_share,
        source=FROM_TABLE,
    )


def peak_tflops(row: GpuModel) -> dict[str, float]:
    """Dense peaks by the type that is multiplied; 0 where the hardware has no such path."""
    return {
        "fp32": row.fp32_tflops,
        "tf32": row.tf32_tflops,
        "fp16": row.fp16_tflops,
        "bf16": row.bf16_tflops,
        "fp8": row.fp8_tflops,
    }
