"""How fast the GPUs of a machine exchange data: bus bandwidth by the slowest link that joins them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from adaptft.facts import Gpu, Link, Machine

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
    among, slots = _among(machine, gpu_indices), _slot_rates(machine)
    pairs = len(gpu_indices) * (len(gpu_indices) - 1) // 2
    rates = [_link_rate(link, slots) for link in among]
    if len(among) < pairs:  # pairs that the probe knows nothing of
        rates.append(min(slots[index] for index in gpu_indices) * PCIE_SHARE_THROUGH_HOST)
    return min(rates)


def _among(machine: Machine, gpu_indices: tuple[int, ...]) -> list[Link]:
    chosen = set(gpu_indices)
    return [link for link in machine.links if link.a in chosen and link.b in chosen]


def _link_rate(link: Link, slots: dict[int, float]) -> float:
    if link.path == "NV":
        each = NVLINK_GB_PER_LINK[link.nvlink_generation or 3]
        return (link.nvlink_width or 1) * each / 2 * NVLINK_SHARE * 1e9
    slower = min(slots[link.a], slots[link.b])
    return slower * (PCIE_SHARE if link.peer_access else PCIE_SHARE_THROUGH_HOST)


def _slot_rates(machine: Machine) -> dict[int, float]:
    """Bytes per second through the slot of each GPU, one way, as PCI-SIG has them."""
    return {
        gpu.index: PCIE_GB_PER_LANE[gpu.pcie_generation or ASSUMED_PCIE[0]] * (gpu.pcie_width or ASSUMED_PCIE[1]) * 1e9
        for gpu in machine.gpus
    }


def without_peer_copies(machine: Machine, gpu_indices: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Pairs of these GPUs that have no NVLink and between which the driver is known to refuse copies.

    NCCL may believe in such copies and hang or read garbage, so that a run then sets ``NCCL_P2P_DISABLE=1``.
    """
    links = _among(machine, gpu_indices)
    return tuple((link.a, link.b) for link in links if link.peer_access is False and link.path != "NV")


def lacks_peer_copies(machine: Machine, gpu_indices: tuple[int, ...]) -> bool:
    """True where there is such a pair."""
    return bool(without_peer_copies(machine, gpu_indices))


def link_words(machine: Machine, gpu_indices: tuple[int, ...]) -> str:
    """``NVLink, 219 GB/s``, or ``PCIe 4.0 x16 (PHB) through host memory, 12.6 GB/s``: the slowest link's."""
    rate = exchange_bytes_per_second(machine, gpu_indices) or 0.0
    among = _among(machine, gpu_indices)
    complete = len(among) == len(list(combinations(gpu_indices, 2)))
    if complete and all(link.path == "NV" for link in among):
        return f"NVLink, {rate / 1e9:.0f} GB/s"
    slots = [gpu for gpu in machine.gpus if gpu.index in gpu_indices]
    generation = min(gpu.pcie_generation or ASSUMED_PCIE[0] for gpu in slots)
    width = min(gpu.pcie_width or ASSUMED_PCIE[1] for gpu in slots)
    codes = sorted({link.path for link in among} - {"NV"}, key=_PATHS.index)
    paths = f" ({', '.join(codes)})" if codes else ""
    through = "" if complete and not lacks_peer_copies(machine, gpu_indices) else " through host memory"
    return f"PCIe {generation}.0 x{width}{paths}{through}, {rate / 1e9:.3g} GB/s"


_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")


def best_joined(machine: Machine, gpus: Iterable[Gpu], count: int) -> tuple[int, ...]:
    """``count`` of ``gpus`` whose slowest link is the fastest; of equals the freest. Grown from each GPU in turn."""
    pool = sorted(gpus, key=lambda gpu: (-gpu.memory_free_bytes, gpu.index))
    slots = _slot_rates(machine)
    rates = {frozenset((link.a, link.b)): _link_rate(link, slots) for link in machine.links}
    free = {gpu.index: gpu.memory_free_bytes for gpu in pool}

    def slowest(group: tuple[int, ...]) -> float:
        return min((rates.get(frozenset(pair), 0.0) for pair in combinations(group, 2)), default=0.0)

    def grown(start: int) -> tuple[int, ...]:
        group: tuple[int, ...] = (start,)
        while len(group) < count:
            rest = (gpu.index for gpu in pool if gpu.index not in group)
            group = (*group, max(rest, key=lambda index: min(rates.get(frozenset((index, g)), 0.0) for g in group)))
        return group

    def rank(group: tuple[int, ...]) -> tuple[float, int]:
        return slowest(group), min(free[index] for index in group)

    groups: list[tuple[int, ...]] = [grown(gpu.index) for gpu in pool]
    best: tuple[int, ...] = max(groups, key=rank)
    return tuple(sorted(best))


def largest_nvlink_group(machine: Machine, gpus: Iterable[Gpu]) -> int:
    """How many of ``gpus`` NVLink joins all to all; 1 where there is none."""
    pool = tuple(gpu.index for gpu in gpus)
    joined = {frozenset((link.a, link.b)) for link in machine.links if link.path == "NV"}
    most = 1
    for start in pool:
        group = [start]
        group += [index for index in pool if index != start and _joins(index, group, joined)]
        most = max(most, len(group))
    return most


def _joins(index: int, group: list[int], joined: set[frozenset[int]]) -> bool:
    return all(frozenset((index, other)) in joined for other in group)
