"""What joins several machines: the network's bandwidth, as the user says or as such machines are sold."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import Machine
from adaptft.policy.gpus import known_gpu

NETWORK_SHARE = 0.8
"""What NCCL reaches of the line rate (about 40 of 50 GB/s a card over InfiniBand; NCCL tests as published)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Gbit/s of a machine, or of each of its GPUs where each has a card of its own."""

    gbps: float
    for_each_gpu: bool
    words: str


INFINIBAND_NDR = Network(400, True, "InfiniBand NDR, 400 Gbit/s for each GPU")
INFINIBAND_HDR = Network(200, True, "InfiniBand HDR, 200 Gbit/s for each GPU")
DATA_CENTRE = Network(100, False, "100 Gbit/s Ethernet")
OFFICE = Network(10, False, "10 Gbit/s Ethernet")
BY_GENERATION = {10: INFINIBAND_NDR, 9: INFINIBAND_NDR, 8: INFINIBAND_HDR}
"""Of servers with NVLink modules, by major compute capability: DGX B200 and H100, DGX A100 (NVIDIA's user guides)."""


def network(machine: Machine, gpus_used: int, asked_gbps: float | None) -> tuple[float, str]:
    """Bytes/s that a machine sends while it receives as many, and where that is from.

    Args:
        gpus_used: on this machine; each brings its own card along where the table says so.
        asked_gbps: the user's number for the whole machine.
    """
    if asked_gbps is not None:
        return asked_gbps / 8 * 1e9 * NETWORK_SHARE, f"{asked_gbps:g} Gbit/s, as you say"
    found = assumed_network(machine)
    gbps = found.gbps * (gpus_used if found.for_each_gpu else 1)
    return gbps / 8 * 1e9 * NETWORK_SHARE, f"{found.words}, assumed without --network_gbps"


def assumed_network(machine: Machine) -> Network:
    """As machines with such GPUs are sold."""
    gpu = machine.gpus[0]
    row = known_gpu(gpu)
    if row is not None and row.nvlink == "nvlink":
        return BY_GENERATION.get(row.compute_capability[0], DATA_CENTRE)
    return OFFICE if "GeForce" in gpu.name else DATA_CENTRE
