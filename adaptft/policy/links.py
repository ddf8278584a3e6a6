"""How fast GPUs exchange gradients: bus bandwidth by the slowest link that joins them."""

from __future__ import annotations

from adaptft.facts import Link, Machine

NVLINK_GB_PER_LINK = {1: 40.0, 2: 50.0, 3: 50.0, 4: 50.0, 5: 100.0}
"""GB/s of one NVLink, both directions together, by generation (NVIDIA's architecture papers)."""
NVLINK_GENERATIONS = {6: 1, 7: 2, 8: 3, 9: 4, 10: 5}
"""The generation that boards of a major compute capability have."""
NVLINK_SHARE = 0.73
"""All-reduce's bus bandwidth over one direction's: 329 of 450 GB/s measured between two H200."""
PCIE_GB_PER_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
"""GB/s of one lane in one direction, by generation (PCI-SIG)."""
PCIE_SHARE, PCIE_SHARE_THROUGH_HOST = 0.7, 0.4
"""The same for PCIe, with peer copies and without (estimated from published 10-25 GB/s of such boards)."""
ASSUMED_PCIE = (4, 16)


def exchange_bytes_per_second(machine: Machine, gpu_indices: tuple[int, ...]) -> float | None:
    """Bus bandwidth of an all-reduce over these GPUs: as measured here, else by their slowest link; None for one."""
    if len(gpu_indices) < 2:
        return None
    if machine.ceilings and machine.ceilings.link_bytes_per_second:
        return machine.ceilings.link_bytes_per_second
    chosen = set(gpu_indices)
    among = [link for link in machine.links if {link.a, link.b} <= chosen]
    pairs = len(chosen) * (len(chosen) - 1) // 2
    rates = [_link_rate(machine, link) for link in among]
    if len(among) < pairs:  # pairs that the probe knows nothing of
        rates.append(_pcie_rate(machine, gpu_indices, peers=False))
    return min(rates)


def _link_rate(machine: Machine, link: Link) -> float:
    if link.path == "NV":
        each = NVLINK_GB_PER_LINK[link.nvlink_generation or 3]
        return (link.nvlink_width or 1) * each / 2 * NVLINK_SHARE * 1e9
    return _pcie_rate(machine, (link.a, link.b), peers=bool(link.peer_access))


def _pcie_rate(machine: Machine, gpu_indices: tuple[int, ...], *, peers: bool) -> float:
    """Of the slowest slot."""
    slots = [gpu for gpu in machine.gpus if gpu.index in gpu_indices]
    lanes = min(
        PCIE_GB_PER_LANE[gpu.pcie_generation or ASSUMED_PCIE[0]] * (gpu.pcie_width or ASSUMED_PCIE[1]) for gpu in slots
    )
    return lanes * (PCIE_SHARE if peers else PCIE_SHARE_THROUGH_HOST) * 1e9


def exchange_seconds(num_bytes: float, ranks: int, bytes_per_second: float) -> float:
    """Time of an all-reduce of ``num_bytes``: a ring moves 2 (n - 1) / n of them past each GPU (NCCL's algbw rule)."""
    return 2 * (ranks - 1) / ranks * num_bytes / bytes_per_second
