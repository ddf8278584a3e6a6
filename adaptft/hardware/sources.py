"""NVIDIA sources in order: NVML, then nvidia-smi, then torch. Each gives a ``Reading`` or a reason."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from adaptft.hardware.boards import Board, BoardLink, Reading, merge_boards
from adaptft.hardware.nvml import NvmlUnavailable, read_nvml
from adaptft.hardware.smi import (
    COLUMNS,
    parse_list,
    parse_query,
    parse_query_column,
    parse_screen,
    parse_versions,
    rejected_column,
)
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.tools import ToolError, is_there, run_tool
from adaptft.hardware.topology import (
    PathCode,
    Topology,
    nvlink_generation,
    parse_nvlink_speeds,
    parse_peers,
    parse_topology,
)
from adaptft.hardware.torch_devices import parse_torch

T = TypeVar("T")
# The driver may have to wake every GPU up first when no persistence daemon runs.
_SMI_SECONDS = 30
_TORCH_SECONDS = 120
_DEVICE_NODES = ("dev/nvidia[0-9]*", "dev/nvidiactl", "dev/dxg", "dev/nvmap", "dev/nvhost-ctrl")


def read_nvidia(root: Path, notes: list[str], *, torch_cuda: str | None) -> Reading:
    """Boards and links from the first source that works; ``notes`` gets the reason of each that does not.

    Args:
        root: the file system's root.
        torch_cuda: CUDA version torch was built for; without one torch is not asked.
    """
    reading = _from_nvml(notes) or _from_smi(notes)
    if reading is None and torch_cuda is not None and has_device_nodes(root):
        reading = _attempt(notes, lambda: parse_torch(_run_torch()))
    if reading is None:
        return Reading(boards=())
    links = smi_links(reading.boards, notes) if is_there("nvidia-smi") else ()
    boards = tuple(dataclasses.replace(b, numa_node=read_numa_node(root, b.pci_bus_id)) for b in reading.boards)
    return dataclasses.replace(reading, boards=boards, links=links or reading.links)


def has_device_nodes(root: Path) -> bool:
    """True where the kernel shows an NVIDIA device (Linux, WSL, Jetson) under ``root``."""
    return any(next(root.glob(pattern), None) for pattern in _DEVICE_NODES)


def read_numa_node(root: Path, pci_bus_id: str | None) -> int | None:
    """NUMA node of a PCI device (``00000000:1B:00.0``) from sysfs; None where the kernel does not know one."""
    if pci_bus_id is None:
        return None
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        node = int((root / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def smi_boards(notes: list[str]) -> Reading | None:
    """Boards from nvidia-smi's query, list and screen, each filling what the ones before do not say."""
    query = _attempt(notes, _run_query)
    listed = _attempt(notes, lambda: parse_list(_smi("-L")))
    screen_text = _attempt(notes, lambda: _smi())
    boards = merge_boards(
        parse_query(query) if query else (),
        listed or (),
        parse_screen(screen_text) if screen_text else (),
    )
    if query is None and listed is None and screen_text is None:
        return None
    driver, cuda = parse_versions(screen_text or "")
    driver = driver or (parse_query_column(query, "driver_version") if query else None)
    return Reading(boards=boards, driver=driver, driver_cuda=cuda)


def smi_links(boards: tuple[Board, ...], notes: list[str]) -> tuple[BoardLink, ...]:
    """Links of all pairs from ``nvidia-smi topo`` and ``nvlink``; empty where there is one board or no answer."""
    if len(boards) < 2:
        return ()
    topology = _attempt(notes, lambda: parse_topology(_smi("topo", "-m")))
    if topology is None:
        return ()
    peers = _attempt(notes, lambda: parse_peers(_smi("topo", "-p2p", "r"))) or {}
    bridged = any(code.path == "NV" for code in topology.gpu_paths.values())
    speeds = (_attempt(notes, lambda: parse_nvlink_speeds(_smi("nvlink", "-s"))) or {}) if bridged else {}
    return board_links(topology, peers, speeds, boards)


def board_links(
    topology: Topology,
    peers: dict[tuple[int, int], bool | None],
    speeds: dict[int, tuple[float, ...]],
    boards: tuple[Board, ...],
) -> tuple[BoardLink, ...]:
    """Put together what the three texts say of each pair of boards."""
    capabilities = {board.index: board.compute_capability for board in boards}

    def generation(index: int, code: PathCode) -> int | None:
        if code.path != "NV":
            return None
        return nvlink_generation(capabilities.get(index), next(iter(speeds.get(index, ())), None))

    return tuple(
        BoardLink(a=a, b=b, code=code, generation=generation(a, code), peer_access=peers.get((a, b)))
        for (a, b), code in sorted(topology.gpu_paths.items())
    )


def _from_nvml(notes: list[str]) -> Reading | None:
    try:
        return read_nvml()
    except NvmlUnavailable as reason:
        notes.append(f"{reason}.")
        return None


def _from_smi(notes: list[str]) -> Reading | None:
    if not is_there("nvidia-smi"):
        notes.append("nvidia-smi is not installed.")
        return None
    return smi_boards(notes)


def _run_query() -> str:
    """The csv of all columns that this nvidia-smi knows; older ones reject the newer columns one by one."""
    columns = [*COLUMNS, "driver_version"]
    while True:
        try:
            text = _smi(f"--query-gpu={','.join(columns)}", "--format=csv")
            parse_query(text)
            return text
        except ToolError as error:
            rejected = rejected_column(str(error))
            if rejected not in columns:
                raise
            columns.remove(rejected)


def _run_torch() -> str:
    return run_tool(sys.executable, "-m", "adaptft.hardware.torch_devices", timeout_seconds=_TORCH_SECONDS)


def _smi(*arguments: str) -> str:
    return run_tool("nvidia-smi", *arguments, timeout_seconds=_SMI_SECONDS)


def _attempt(notes: list[str], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (ToolError, UnreadableOutput) as reason:
        notes.append(f"{str(reason)[:300]}.")
        return None
