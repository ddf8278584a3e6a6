"""The arrangements of devices that a plan weighs: how many GPUs, which of them, and what each of them keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from adaptft.errors import RequestError
from adaptft.facts import Machine, ModelShape
from adaptft.plans import SHARDED, Decision, Placement, Source
from adaptft.policy.links import best_joined, lacks_peer_copies, largest_nvlink_group, link_words
from adaptft.policy.networks import network
from adaptft.policy.placement import Pool, choose_pool
from adaptft.requests import TrainRequest
from adaptft.units import format_bytes

CanShare = Callable[[int], bool]
"""Whether so many ranks can divide a step among themselves."""
Spread = Literal["ddp", "zero2", "fsdp2"]
SPREADS: tuple[Spread, ...] = ("ddp", "fsdp2", "zero2")
NO_GAIN = "would be no gain"
"""Said of GPUs that would make a step longer."""
_WORDS: dict[Spread, str] = {
    "ddp": "a replica on each of {gpus}; only gradients travel",
    "zero2": "gradients and optimizer states sharded over {gpus}; weights are gathered once a micro-batch",
    "fsdp2": "weights, gradients and optimizer states sharded over {gpus}; each layer is gathered for each pass",
}


def own_rows(machine: Machine, request: TrainRequest, can_share: CanShare) -> tuple[Decision[Placement], ...]:
    """Every arrangement in which each GPU has rows of its own, most GPUs and plainest first; the CPU alone is one.

    Raises:
        MachineError: GPUs are asked for and no usable one is there.
        RequestError: more GPUs are asked for than can be used.
    """
    pool = choose_pool(machine, request)
    if isinstance(pool, str):
        placement = Placement(strategy="cpu", nodes=request.nnodes or 1)
        return (Decision(placement, pool, "user" if request.device else "policy"),)
    found = _Arranger(machine, request, pool, can_share)
    return tuple(found.decision(spread, count) for count in found.counts() for spread in found.spreads(count))


def shared_rows(
    machine: Machine, model: ModelShape, request: TrainRequest, can_share: CanShare
) -> tuple[Decision[Placement], ...]:
    """The arrangements in which 2, 4, ... GPUs of a machine share each row's tokens, or as many as the user says.

    They shard the weights as well: a run whose rows do not fit one GPU has nothing to spare for whole replicas.

    Raises:
        MachineError: GPUs are asked for and no usable one is there.
        RequestError: the user's number divides neither the GPUs nor the model's heads.
    """
    pool = choose_pool(machine, request)
    if isinstance(pool, str) or request.strategy not in (None, "fsdp2"):
        return ()
    found = _Arranger(machine, request, pool, can_share)
    sizes = (request.sequence_parallel_size,) if request.sequence_parallel_size else found.row_shares(model)
    made = [found.sharing(size) for size in sizes if size is not None and _divides_heads(size, model)]
    if request.sequence_parallel_size and not any(made):
        raise _cannot_share(request.sequence_parallel_size, model, len(pool.gpus))
    return tuple(decision for decision in made if decision)


@dataclass(frozen=True, slots=True)
class _Arranger:
    machine: Machine
    request: TrainRequest
    pool: Pool
    can_share: CanShare

    @property
    def nodes(self) -> int:
        return self.request.nnodes or 1

    def counts(self) -> tuple[int, ...]:
        """GPUs on each machine: as asked for, else all that can share a step, those that NVLink joins, and one."""
        most = self._most(1)
        if self.request.num_gpus is not None or self.nodes > 1:
            return (most,)
        joined = largest_nvlink_group(self.machine, self.pool.gpus)
        fewer = [joined] if 1 < joined < most and self.can_share(joined) else []
        alone = [1] if most > 1 and self.request.strategy is None and self.can_share(1) else []
        return (most, *fewer, *alone)

    def _most(self, sharing: int) -> int:
        """The most GPUs on each machine among which a step divides where ``sharing`` of them have the same rows."""
        request, there = self.request, len(self.pool.gpus)
        if request.num_gpus is not None:
            return request.num_gpus
        if (self.nodes > 1 or request.strategy in SHARDED) and request.global_batch_size is None:
            return there - there % sharing  # who names machines or shards wants all GPUs, and the step grows with them
        groups = (
            count for count in range(sharing, there + 1, sharing) if self.can_share(count * self.nodes // sharing)
        )
        return max(groups, default=sharing)

    def spreads(self, count: int) -> tuple[Spread, ...]:
        """What each GPU can keep: as asked for, else anything; one GPU keeps everything."""
        if count * self.nodes == 1:
            return ("ddp",)
        return (self.request.strategy,) if self.request.strategy else SPREADS

    def row_shares(self, model: ModelShape) -> Iterator[int]:
        """Powers of two up to the GPUs of a machine."""
        size = 2
        while size <= min(len(self.pool.gpus), self.request.num_gpus or len(self.pool.gpus)):
            yield size
            size *= 2

    def sharing(self, size: int) -> Decision[Placement] | None:
        """``size`` GPUs to a row, on as many GPUs as can be; None where they cannot be grouped so."""
        count = self._most(size)
        if count % size or count < size or count > len(self.pool.gpus):
            return None
        return self.decision("fsdp2", count, size)

    def decision(self, spread: Spread, count: int, size: int = 1) -> Decision[Placement]:
        """The placement and the reasons for it that do not depend on the model."""
        request = self.request
        asked = (request.num_gpus, request.nnodes, request.strategy, request.sequence_parallel_size, request.device)
        source: Source = "policy" if all(wish is None for wish in asked) else "user"
        if count * self.nodes == 1:
            return Decision(*self._alone(), source)
        indices = best_joined(self.machine, self.pool.gpus, count)
        placement = Placement(strategy=spread, gpu_indices=indices, nodes=self.nodes, sequence_parallel_size=size)
        shared = f"{size} GPUs share each row's tokens; " if size > 1 else ""
        words = _WORDS[spread].format(gpus=self._gpus(count))
        return Decision(placement, f"{shared}{words}{self._joined(indices)}{self._left(count, size)}", source)

    def _alone(self) -> tuple[Placement, str]:
        best = self.pool.gpus[0]
        name = f"MIG slice {best.mig.profile}" if best.mig else best.name
        nothing = "; over one GPU there is nothing to shard" if self.request.strategy in SHARDED else ""
        reason = f"{name}, {format_bytes(best.memory_free_bytes)} free{nothing}{self._left(1)}"
        return Placement(strategy="single", gpu_indices=(best.index,), device_map={"": 0}), reason

    def _gpus(self, count: int) -> str:
        machines = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{machines}{count} {self.pool.gpus[0].name}"

    def _joined(self, indices: tuple[int, ...]) -> str:
        """Over what, and what a run sets where the driver allows no copies between the GPUs."""
        found = [link_words(self.machine, indices)] if len(indices) > 1 else []
        if self.nodes > 1:
            found.append(f"between machines {network(self.machine, len(indices), self.request.network_gbps)[1]}")
        lacking = "; NCCL_P2P_DISABLE=1, since the driver allows no copies from GPU to GPU"
        return f" ({'; '.join(found)})" + (lacking if lacks_peer_copies(self.machine, indices) else "")

    def _left(self, count: int, size: int = 1) -> str:
        """Why the other GPUs are not used, where there are others."""
        if self.request.num_gpus is not None:
            return f"; {count} asked for"
        there, most = len(self.pool.gpus), self._most(size)
        parts = [self.pool.left] if self.pool.left else []
        if count < most:
            parts.insert(0, f"the other {there - count} {NO_GAIN}")
        elif most < there:
            parts.insert(0, f"a step does not divide among {there} GPUs")
        return "".join(f"; {part}" for part in parts)


def _divides_heads(size: int, model: ModelShape) -> bool:
    """Attention is computed on all tokens with a part of the heads; key heads are repeated where they are too few."""
    keys = model.num_key_value_heads
    return model.num_attention_heads % size == 0 and (keys % size == 0 or size % keys == 0)


def _cannot_share(size: int, model: ModelShape, gpus: int) -> RequestError:
    return RequestError(
        f"sequence_parallel_size {size} has to divide the GPUs of a machine ({gpus} usable) and the heads of "
        f"{model.name} ({model.num_attention_heads}, keys {model.num_key_value_heads}).",
        fix="Use a power of two that does, or leave it out: adaptft shares rows where they do not fit one GPU.",
    )
