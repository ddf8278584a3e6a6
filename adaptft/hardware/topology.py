"""Text of ``nvidia-smi topo -m``, ``topo -p2p r`` and ``nvlink -s`` as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import get_args

from adaptft.facts import LinkPath
from adaptft.hardware.matrix import Matrix, parse_matrices
from adaptft.hardware.text import UnreadableOutput, clean_lines

_PATHS: tuple[LinkPath, ...] = get_args(LinkPath)
_NOT_SHOWN = {"N/A", "NA", "-", "?"}
_PEER = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False, "U": None}
# GB/s per link and direction as nvidia-smi prints it -> generation (NVIDIA's architecture whitepapers).
# GA102 (RTX 3090, A40, A6000) runs third-generation links at 14.062.
_GENERATION_BY_SPEED = {14.062: 3, 19.531: 1, 20.0: 1, 25.0: 3, 25.781: 2, 26.562: 4, 50.0: 5, 53.125: 5}
_GENERATION_BY_MAJOR = {6: 1, 7: 2, 8: 3, 9: 4, 10: 5}


@dataclass(frozen=True, slots=True)
class PathCode:
    """One cell of the topology: ``NV12`` is path ``NV`` and width 12."""

    path: LinkPath
    width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """``nvidia-smi topo -m``: GPUs by nvidia-smi's index, network cards by their kernel name."""

    gpus: tuple[int, ...]
    nics: tuple[str, ...]
    gpu_paths: dict[tuple[int, int], PathCode]
    nic_paths: dict[tuple[int, str], PathCode]
    numa_nodes: dict[int, int]


def parse_topology(text: str) -> Topology:
    """Read ``nvidia-smi topo -m``, with tabs or blanks, with or without network cards, affinity and legend.

    Raises:
        UnreadableOutput: there is no table of GPUs, or it has codes that nvidia-smi does not use (another vendor's).
    """
    matrix = _gpu_matrix(text, "a topology")
    names = dict(line.split()[:2] for line in clean_lines(text) if re.match(r" *NIC\d+: +\S", line))
    names = {label.rstrip(":"): name for label, name in names.items()}
    gpu_paths: dict[tuple[int, int], PathCode] = {}
    nic_paths: dict[tuple[int, str], PathCode] = {}
    for (first, second), cell in matrix.pairs().items():
        if first not in matrix.accelerators or cell in _NOT_SHOWN:
            continue
        if second in matrix.accelerators:
            gpu_paths[_index(first), _index(second)] = _path_code(cell)
        else:
            nic_paths[_index(first), names.get(second, second)] = _path_code(cell)
    return Topology(
        gpus=tuple(_index(name) for name in matrix.accelerators),
        nics=tuple(names.get(name, name) for name in matrix.columns if name not in matrix.accelerators),
        gpu_paths=gpu_paths,
        nic_paths=nic_paths,
        numa_nodes={
            _index(name): int(cells["NUMA Affinity"])
            for name, cells in matrix.affinity.items()
            if name in matrix.accelerators and cells.get("NUMA Affinity", "").isdecimal()
        },
    )


def parse_peers(text: str) -> dict[tuple[int, int], bool | None]:
    """Read ``nvidia-smi topo -p2p r``: may the driver copy between two GPUs directly? None where it does not know.

    Raises:
        UnreadableOutput: there is no table of GPUs.
    """
    matrix = _gpu_matrix(text, "a table of peer access")
    return {
        (_index(first), _index(second)): _PEER.get(cell)
        for (first, second), cell in matrix.pairs().items()
        if second in matrix.accelerators
    }


def parse_nvlink_speeds(text: str) -> dict[int, tuple[float, ...]]:
    """Read ``nvidia-smi nvlink -s``: GB/s per direction of every active link, by nvidia-smi's index.

    Raises:
        UnreadableOutput: no GPU is listed.
    """
    speeds: dict[int, list[float]] = {}
    current: list[float] = []
    for line in clean_lines(text):
        if gpu := re.match(r"\s*GPU (\d+):", line):
            current = speeds.setdefault(int(gpu.group(1)), [])
        elif link := re.match(r"\s*Link \d+:\s*([\d.]+) GB/s", line):
            current.append(float(link.group(1)))
    if not speeds:
        raise UnreadableOutput("no GPU in the output of nvidia-smi nvlink")
    return {index: tuple(values) for index, values in speeds.items()}


def nvlink_generation(compute_capability: tuple[int, int] | None, link_gb_per_second: float | None) -> int | None:
    """Generation of the links: the architecture decides; where it is not known, the speed of a link."""
    if compute_capability is not None:
        return _GENERATION_BY_MAJOR.get(compute_capability[0])
    if link_gb_per_second is None:
        return None
    near = [g for speed, g in _GENERATION_BY_SPEED.items() if abs(speed - link_gb_per_second) < 0.1]
    return near[0] if near else None


def _gpu_matrix(text: str, what: str) -> Matrix:
    for matrix in parse_matrices(text):
        if matrix.rows and all(name.startswith("GPU") for name in matrix.accelerators):
            return matrix
    raise UnreadableOutput(f"not {what} of nvidia-smi")


def _path_code(cell: str) -> PathCode:
    if bonded := re.fullmatch(r"NV(\d+)", cell):
        return PathCode("NV", int(bonded.group(1)))
    for path in _PATHS:
        if cell == path != "NV":
            return PathCode(path)
    raise UnreadableOutput(f"nvidia-smi has no link code {cell}")


def _index(label: str) -> int:
    return int(label.removeprefix("GPU"))
