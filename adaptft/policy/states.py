"""Memory that does not depend on the micro-batch: weights, gradients and optimizer states, whole or as shards.

A replica (one GPU, DDP) has everything, in DDP's case the gradients twice. Where they are sharded each of n ranks has
1/n of everything at rest and, while it computes, gathered parts:

* fsdp2 (ZeRO-3): weights, gradients and states as shards (PyTorch's fully_shard): the decoder layer in use and the
  next one gathered, the head from the end of the forward pass to the beginning of the backward pass.
* zero2: the same shards, but every layer stays gathered from its forward to its backward pass.

Gradients of a layer exist whole until they are reduced and scattered, once more in the buffer that is sent; those of
an earlier micro-batch wait as shards. With FP32 weights and AdamW that is 16P/n and what is gathered (ZeRO paper, table
1, with FP32 masters instead of 16-bit weights beside them).
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.plans import DTYPE_BYTES
from adaptft.policy.storage import Gathered, gathered, in_fp8, stored, stored_bytes
from adaptft.policy.workload import Workload

SAVED_STATES = {"adamw": 2.0, "adamw_8bit": 2.03, "paged_adamw_8bit": 2.03}
REDUCED_BYTES = 4
"""Of a gradient as ranks add it up: FP32, whatever weights are gathered in."""
LAYERS_GATHERED = 2
"""The one in use, and the next one on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes on one device that a step holds, whatever its micro-batch."""

    weights: int
    adapters: int
    optimizer: int
    gradients: int
    """At the optimizer's step, buffers of their exchange included."""
    waiting_gradients: int
    """While a micro-batch runs: of those before it, and buffers."""
    passing_gradients: int = 0
    """Of the layer whose backward pass runs, whole, until it is scattered."""
    passing_weights: int = 0
    """Beside those at rest while a micro-batch runs: 16-bit copies, or what is gathered."""
    ending: tuple[int, int] = (0, 0)
    """Weights and gradients beside those at rest when the backward pass reaches the embedding."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Bytes of what is trained, of the whole model: ``weights`` beside the base are adapters."""

    adapters: int
    gradients: int
    optimizer: int


def states(work: Workload) -> States:
    """As the plan's strategy keeps them."""
    return _shards(work) if work.is_sharded else _replica(work)


def _replica(work: Workload) -> States:
    own = trained(work)
    buckets = _bucket_bytes(work, own)
    accumulates = work.batch.gradient_accumulation_steps > 1
    return States(
        weights=stored_bytes(work),
        adapters=own.adapters,
        optimizer=own.optimizer,
        gradients=buckets + own.gradients,
        waiting_gradients=buckets + (own.gradients if accumulates else 0),
        passing_weights=_compute_copies(work),
    )


def _shards(work: Workload) -> States:
    own, parts = trained(work), gathered(work)
    ranks = work.decisions.placement.value.num_gpus
    base = stored(work.model, work.precision, work.method)
    accumulates = work.batch.gradient_accumulation_steps > 1
    whole = work.method.train_type == "full"
    table = parts.embedding or parts.head
    return States(
        weights=int((base.plain + base.converted) / ranks + base.scales),
        adapters=own.adapters // ranks,
        optimizer=own.optimizer // ranks,
        gradients=own.gradients // ranks,
        waiting_gradients=own.gradients // ranks if accumulates else 0,
        passing_gradients=_whole_gradients(work, parts.layer) if whole else 2 * own.gradients // work.model.num_layers,
        passing_weights=_gathered_at_a_time(work, parts),
        ending=(table, own.gradients // ranks + _whole_gradients(work, table) if whole else 0),
    )


def _whole_gradients(work: Workload, gathered_bytes: int) -> int:
    """Of weights that are ``gathered_bytes`` large: in the type of the arithmetic, and in FP32 in what is sent."""
    size = DTYPE_BYTES[work.precision.autocast]
    return int(gathered_bytes * (1 + REDUCED_BYTES / size))


def _gathered_at_a_time(work: Workload, parts: Gathered) -> int:
    """At the turn from the forward to the backward pass."""
    keeps_all = work.decisions.placement.value.strategy == "zero2"
    layers = parts.layers if keeps_all else min(LAYERS_GATHERED * parts.layer, parts.layers)
    return layers + parts.head


def trained(work: Workload) -> Trained:
    """Adapters are FP32 with FP32 states; whole models have gradients and states in their weights' type."""
    name = work.decisions.optimizer.value.name
    if work.method.train_type == "full":
        count, size = work.model.num_parameters, DTYPE_BYTES[work.precision.weights]
        each = 2 * size if name == "adamw" else SAVED_STATES[name]
        return Trained(0, int(count * size), int(count * each))
    assert work.targets is not None
    count = work.targets.trainable_parameters(work.method.lora_rank, use_dora=work.method.use_dora)
    count += _saved_modules(work)
    each = 8 if name == "adamw" else SAVED_STATES[name]
    return Trained(4 * count, 4 * count, int(each * count))


def _saved_modules(work: Workload) -> int:
    """Weights of ``modules_to_save``, which are copied and trained whole (embeddings and head, as a rule)."""
    names = set(work.method.modules_to_save)
    rows = sum(row.num_weights for row in work.model.linears if row.name in names)
    return rows + (work.model.embedding_parameters if "embed_tokens" in names else 0)


def _compute_copies(work: Workload) -> int:
    """Autocast keeps a 16-bit copy of each trained FP32 weight from its forward to its backward pass."""
    if work.method.train_type != "full" or work.precision.weights != "fp32" or work.precision.autocast == "fp32":
        return 0
    return 2 * (work.model.num_parameters - (in_fp8(work) if work.precision.compute == "fp8" else 0))


def _bucket_bytes(work: Workload, own: Trained) -> int:
    """DistributedDataParallel's buckets: as large as all gradients, and there from the first step to the last.

    Source: its option gradient_as_bucket_view, which would save them, is off where transformers makes it.
    """
    return own.gradients if work.decisions.placement.value.num_gpus > 1 else 0
