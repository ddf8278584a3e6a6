"""How much of a model host memory holds while it is exported, and in which type. Pure.

Measured 2026-11-30 (two cores, fp32): FP8 of 0.94 B weights in bf16, loaded back on the CPU: 4.05 GiB of 1.74 GiB;
1.25 in the steps before. 2026-12-01: FP8 of Qwen2.5-7B's shape by layer in fp32, 10.4 GiB of 11.4 predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from adaptft.errors import DoesNotFit
from adaptft.facts import Machine, ModelShape
from adaptft.plans import DTYPE_BYTES, SHORT_DTYPES, Decision, Dtype, Residence
from adaptft.policy.devices import Device, gpu_has_bf16, host_free_bytes
from adaptft.policy.format_table import FormatFacts
from adaptft.units import GiB, format_bytes

_ONCE = 1.25
"""Host memory over the weights: the layer in work, a shard being written."""
_TWICE = 2.3
"""The same where a compressed export is loaded back on the CPU: transformers widens it beside what it read."""
_LIBRARIES = 1.75 * GiB
"""Python, torch and llm-compressor, a shard that is written, the logits of the check: SmolLM2 took 1.7 to 2.1."""
_TABLES = 4
"""Embeddings, head and the source's copy of it, one of them twice while its type changes."""
_LAYERS = 6
"""The widest linear layer: stored, widened, added to, rounded, written."""

Rung = tuple[Dtype, Residence]
_WORDS: dict[Residence, str] = {
    "twice": "",
    "once": "host memory holds the weights once, so the export is loaded back to the GPU, or a layer at a time",
    "by_layer": "a layer at a time, the weights stay on disk: host memory does not hold them",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The type of the weights while they are worked on, and where they are."""

    dtype: Decision[Dtype]
    residence: Decision[Residence]
    num_bytes: int
    """Predicted peak, mapped files apart."""


def choose_memory(
    machine: Machine, model: ModelShape, facts: FormatFacts, device: Device, *, can_stream: bool
) -> HostMemory:
    """The first way, fastest and most exact ones first, that fits into host memory.

    Args:
        can_stream: False where the weights cannot stay on disk.

    Raises:
        DoesNotFit: none does.
    """
    available = host_free_bytes(machine)
    first, reason = _preferred(machine, model, facts, device)
    ways = [way for way in _ways(machine, facts, device, first) if can_stream or way[1] != "by_layer"]
    for dtype, residence in ways:
        if needed_bytes(model, dtype, residence) <= available:
            said = reason if dtype == first else f"{dtype}, as {first} does not fit into host memory"
            why = _WORDS[residence] if facts.is_compressed or residence == "by_layer" else ""
            return HostMemory(
                dtype=Decision(dtype, said),
                residence=Decision(residence, why),
                num_bytes=needed_bytes(model, dtype, residence),
            )
    needed = min(needed_bytes(model, *way) for way in ways)
    raise DoesNotFit(
        f"Exporting {model.name} needs {format_bytes(needed)} of host memory; {format_bytes(available)} are available.",
        fix="Close other programs, or export on a machine with more memory; the adapter folder is all it needs.",
    )


def needed_bytes(model: ModelShape, dtype: Dtype, residence: Residence) -> int:
    """Peak of host memory."""
    if residence == "by_layer":
        table = model.vocab_size * model.hidden_size
        widest = max(linear.in_features * linear.out_features for linear in model.linears if linear.kind != "head")
        return round(_LIBRARIES + (_TABLES * table + _LAYERS * widest) * DTYPE_BYTES[dtype])
    copies = {"twice": _TWICE, "once": _ONCE}[residence]
    return round(_LIBRARIES + model.num_parameters * DTYPE_BYTES[dtype] * copies)


def stored_dtype(model: ModelShape) -> Dtype:
    """The type of the source's file; bf16 where it is not known."""
    return SHORT_DTYPES.get(model.stored_dtype, "bf16")


def _preferred(machine: Machine, model: ModelShape, facts: FormatFacts, device: Device) -> tuple[Dtype, str]:
    if not facts.is_compressed:
        return stored_dtype(model), "as stored; a layer is added to its adapter in fp32"
    if device == "cpu":
        if machine.cpu.has_native_bf16:
            return "fp32", "fp32 on the CPU: rounding is then the format's alone"
        return "fp32", "fp32 on the CPU, which only emulates bf16"
    if all(gpu_has_bf16(gpu) for gpu in machine.gpus):
        return "bf16", "the GPU has bf16; weights wait in host memory, a layer at a time moves"
    return "fp32", "the GPU lacks bf16, and a layer at a time fits in fp32"


def _ways(machine: Machine, facts: FormatFacts, device: Device, first: Dtype) -> Iterator[Rung]:
    """A layer at a time costs no memory in fp32, and a CPU is fast in nothing else."""
    if facts.is_compressed:
        yield first, "twice"
    yield first, "once"
    narrow: Dtype = "bf16" if device == "cpu" or all(gpu_has_bf16(gpu) for gpu in machine.gpus) else "fp16"
    yield (first if device == "cuda" else "fp32"), "by_layer"
    if first == "fp32" and facts.is_compressed:
        yield narrow, "once"
