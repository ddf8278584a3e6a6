"""Bytes of the weights: as they are stored, and as they are gathered where they are sharded."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import LinearShape, Machine, ModelShape
from adaptft.plans import DTYPE_BYTES, SHORT_DTYPES, Method, Placement, Precision
from adaptft.policy.devices import host_free_bytes
from adaptft.policy.workload import Workload

CONVERTED_BYTES = {"fp8": 1, "nf4": 0.5}
"""Bytes a weight as stored; FP8 may keep each weight twice (cuBLAS wants the transpose for the backward pass)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Bytes of a model by what sharding does with them."""

    plain: float
    """Embeddings, head, norms, and whatever is not converted."""
    converted: float
    """Linear layers in NF4 (packed) or FP8 (with the scales of its rows)."""
    scales: float
    """Of NF4's blocks: they hang on each rank's modules and are never sharded (bitsandbytes' QuantState)."""

    @property
    def total(self) -> int:
        """Everything, on a device that has all of it."""
        return int(self.plain + self.converted + self.scales)


def stored(model: ModelShape, precision: Precision, method: Method, *, plain_bytes: float | None = None) -> Stored:
    """The model as stored: all in one type, or its linear layers in NF4 or FP8 and the rest in 16 bit.

    Args:
        plain_bytes: of a weight that is not converted; default: the type of the weights.
    """
    plain = DTYPE_BYTES[precision.weights] if plain_bytes is None else plain_bytes
    if method.base_storage not in ("nf4", "fp8"):
        return Stored(plain=model.num_parameters * plain, converted=0, scales=0)
    rows = [row for row in model.linears if is_converted(row, method)]
    weights = sum(row.num_weights for row in rows)
    is_nf4 = method.base_storage == "nf4"
    row_scales = 0 if is_nf4 else 4 * sum(row.out_features * row.count for row in rows)
    return Stored(
        plain=(model.num_parameters - weights) * plain,
        converted=weights * CONVERTED_BYTES[method.base_storage] + row_scales,
        scales=weights * _nf4_scale_bytes(method.double_quant) if is_nf4 else 0,
    )


def weights_bytes(model: ModelShape, precision: Precision, method: Method) -> int:
    """The model as stored, all of it."""
    return stored(model, precision, method).total


def stored_bytes(work: Workload) -> int:
    """The weights as this run keeps them on one device: FP8 ones, where there is room, a second time transposed."""
    once = weights_bytes(work.model, work.precision, work.method)
    if work.method.base_storage != "fp8" or not work.decisions.adapters.value.transposed_copy:
        return once
    return once + sum(row.num_weights for row in work.model.linears if is_converted(row, work.method))


def is_converted(row: LinearShape, method: Method) -> bool:
    """Linear layers with their own module; fused experts, heads and routers stay in 16 bit."""
    return row.is_linear_module and row.kind not in ("head", "router") and row.name not in method.skipped_modules


def fits_on_host(model: ModelShape, precision: Precision, placement: Placement, machine: Machine) -> bool:
    """True where every rank of this machine can have the 16-bit model on the host.

    Stored in the type it is loaded in, it stays in its file and is mapped from there. What is to be sharded is on the
    host of the first rank in any case.
    """
    if placement.is_sharded or SHORT_DTYPES.get(model.stored_dtype) == precision.weights:
        return True
    needed = model.num_parameters * DTYPE_BYTES[precision.weights] * placement.num_gpus // placement.nodes
    return needed <= host_free_bytes(machine)


def _nf4_scale_bytes(double_quant: bool) -> float:
    """A scale every 64 weights: 4 bytes, or 1 byte and 4 bytes more every 256 scales (QLoRA paper)."""
    return 1 / 64 + 4 / (64 * 256) if double_quant else 4 / 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Bytes of a sharded model's parts as every rank has them while they are computed with."""

    layers: int
    """All decoder layers."""
    layer: int
    """One of them."""
    embedding: int
    """The table at the beginning; 0 where it is the head as well."""
    head: int
    """The last norm and the head, or the table that both ends share."""

    @property
    def total(self) -> int:
        """Everything once."""
        return self.layers + self.embedding + self.head


def gathered(work: Workload) -> Gathered:
    """What all-gathers bring together: 16-bit weights in the type of the arithmetic, NF4 packed, FP8 as it is.

    Groups as accelerate makes them for FSDP2: each decoder layer, the embedding, and the last norm with the head.
    """
    model, method = work.model, work.method
    size = DTYPE_BYTES[work.precision.autocast]
    whole = stored(model, work.precision, method, plain_bytes=size)
    table = int(model.embedding_parameters * size)
    ends = table if model.tie_word_embeddings else 2 * table
    layers = int(whole.plain - ends + whole.converted)
    return Gathered(
        layers=layers,
        layer=layers // model.num_layers,
        embedding=0 if model.tie_word_embeddings else table,
        head=table,
    )


def in_fp8(work: Workload) -> int:
    """Weights of the layers that are trained in FP8: quantised for each matmul, so that no copy of them lasts."""
    return sum(row.num_weights for row in work.model.linears if is_converted(row, work.method))
