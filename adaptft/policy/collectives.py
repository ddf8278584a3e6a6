"""How long collectives take: over the links of a machine, over the network between machines, and their start-up.

A ring moves (n - 1) / n of the gathered bytes past each of n ranks, twice that in an all-reduce (NCCL's rule for bus
bandwidth). Across m machines each has to receive (m - 1) / m of them over its network; NCCL sends on all cards at a
time, and links and network work at once, so that the slower one counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import Machine
from adaptft.plans import Placement
from adaptft.policy.links import exchange_bytes_per_second
from adaptft.policy.networks import network

GATHER_SHARE = 0.84
"""All-gather's bus bandwidth over all-reduce's: 277 of 329 GB/s measured between two H200."""
START_SECONDS = 30e-6
"""Of a collective within a machine: launching it, and the first bytes' way around (own estimate, not measured)."""
START_SECONDS_A_MACHINE = 10e-6
"""More for each further machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """The ranks of a run and the rates between them, in bytes/s; None where there is nothing to cross."""

    ranks: int
    nodes: int
    link_rate: float | None
    network_rate: float | None

    def gather_seconds(self, num_bytes: float, collectives: int = 1) -> float:
        """All-gathers, or reduce-scatters, that bring ``num_bytes`` together, in ``collectives`` parts."""
        return self._seconds(num_bytes, GATHER_SHARE) + collectives * self._start_seconds

    def reduce_seconds(self, num_bytes: float, collectives: int = 1) -> float:
        """All-reduces of ``num_bytes``, in ``collectives`` parts."""
        return 2 * self._seconds(num_bytes, 1.0) + collectives * self._start_seconds

    @property
    def _start_seconds(self) -> float:
        return START_SECONDS + START_SECONDS_A_MACHINE * (self.nodes - 1)

    def _seconds(self, num_bytes: float, share: float) -> float:
        links = (self.ranks - 1) / self.ranks * num_bytes / (self.link_rate * share) if self.link_rate else 0.0
        crossed = (self.nodes - 1) / self.nodes * num_bytes / self.network_rate if self.network_rate else 0.0
        return max(links, crossed)


def interconnect(machine: Machine, placement: Placement, network_gbps: float | None) -> Interconnect | None:
    """What the ranks of ``placement`` talk over; None for one rank."""
    if placement.num_gpus < 2:
        return None
    used = len(placement.gpu_indices)
    return Interconnect(
        ranks=placement.num_gpus,
        nodes=placement.nodes,
        link_rate=exchange_bytes_per_second(machine, placement.gpu_indices),
        network_rate=network(machine, used, network_gbps)[0] if placement.nodes > 1 else None,
    )
