"""Collectives of a training step: how long they take, and how much of that the step waits for.

* DDP: an all-reduce of all gradients, behind the backward pass of the last micro-batch.
* FSDP2: in each micro-batch each layer is gathered for its forward and again for its backward pass, and its gradient
  reduced and scattered; ZeRO-2 gathers once. They run beside the arithmetic of the layers before.
* Ranks that share rows (torch's context parallelism): each layer gathers the keys and values of the whole row, in the
  backward pass once more, and scatters their gradients; counted as if nothing ran beside that.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.plans import DTYPE_BYTES
from adaptft.policy.collectives import Interconnect
from adaptft.policy.states import REDUCED_BYTES, trained
from adaptft.policy.storage import gathered
from adaptft.policy.workload import Workload

OVERLAPPED = 0.6
"""Share of a micro-step in which gradients of replicas can travel behind the backward pass."""
HIDDEN = 0.9
"""Share of a pass over the layers behind which gathers and scatters can travel: all but the first layers of it."""
CONTENTION = 0.1
"""Of the time of hidden collectives: NCCL's kernels take multiprocessors from the arithmetic (own estimate)."""
FORWARD_SHARE = {"full": 1 / 3, "lora": 0.4, "qlora": 0.4}
"""Of a micro-step's arithmetic without recomputation: one of three passes, one of two and adapters."""
COPIES = 2
"""Times that gathered bytes go through memory beside the exchange: read from the buffer, written to the weights."""
RING_PASSES = 3
"""Times that a row's keys and values go around: forward, backward, and their gradients."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Seconds of a step."""

    waiting: float = 0.0
    """What the step takes longer."""
    total: float = 0.0
    """All collectives, hidden or not."""

    def __add__(self, other: Exchanged) -> Exchanged:
        return Exchanged(self.waiting + other.waiting, self.total + other.total)


def exchanged(work: Workload, joined: Interconnect | None, micro_step: float, memory_rate: float) -> Exchanged:
    """Of all ranks' collectives in a step.

    Args:
        micro_step: seconds of arithmetic of one micro-batch.
        memory_rate: bytes/s that the device reads and writes.
    """
    if joined is None:
        return Exchanged()
    steps = work.batch.gradient_accumulation_steps
    if not work.is_sharded:
        return _replicas(work, joined, micro_step)
    each = _shards(work, joined, micro_step, memory_rate) + shared_rows(work, joined)
    return Exchanged(each.waiting * steps, each.total * steps)


def _replicas(work: Workload, joined: Interconnect, micro_step: float) -> Exchanged:
    """What does not travel behind the last micro-batch's backward pass."""
    whole = joined.reduce_seconds(trained(work).gradients, work.model.num_layers)
    return Exchanged(max(0.0, whole - OVERLAPPED * micro_step), whole)


def _shards(work: Workload, joined: Interconnect, micro_step: float, memory_rate: float) -> Exchanged:
    parts, layers = gathered(work), work.model.num_layers
    gathering = joined.gather_seconds(parts.total, layers) + COPIES * parts.total / memory_rate
    whole = work.method.train_type == "full"
    scattered = REDUCED_BYTES * work.model.num_parameters if whole else trained(work).gradients
    again = 0.0 if work.decisions.placement.value.strategy == "zero2" else gathering
    backward = again + joined.gather_seconds(scattered, layers)
    forward_time = micro_step * FORWARD_SHARE[work.method.train_type]
    first = gathering / layers
    return beside(gathering, forward_time, first) + beside(backward, micro_step - forward_time, first)


def beside(exchange: float, arithmetic: float, first: float) -> Exchanged:
    """A pass: its ``first`` gather runs beside nothing; what is hidden slows the arithmetic down a little."""
    hidden = min(exchange - first, HIDDEN * arithmetic)
    return Exchanged(exchange - hidden + CONTENTION * hidden, exchange)


def shared_rows(work: Workload, joined: Interconnect) -> Exchanged:
    """Keys and values of whole rows, brought together for each layer by the ranks that share them."""
    size = work.sequence_parallel_size
    if size == 1:
        return Exchanged()
    model, value = work.model, DTYPE_BYTES[work.precision.autocast]
    row = work.computed_tokens * size * 2 * model.key_value_size * value * model.num_layers
    passes = RING_PASSES + work.checkpointing.layers / work.checkpointing.of
    group = Interconnect(ranks=size, nodes=1, link_rate=joined.link_rate, network_rate=None)
    seconds = passes * group.gather_seconds(row, 2 * model.num_layers)
    return Exchanged(seconds, seconds)
