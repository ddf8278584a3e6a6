"""What a source says of the NVIDIA boards, before anything is decided about which of them CUDA may use."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from adaptft.hardware.topology import PathCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG device of a board; ``index`` counts from 0 on every board."""

    index: int
    profile: str | None = None
    uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    sm_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU under nvidia-smi's ``index`` (PCI order); None is "this source does not say"."""

    index: int
    name: str
    uuid: str | None = None
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    sm_count: int | None = None
    ecc_enabled: bool | None = None
    mig_enabled: bool | None = None
    pci_bus_id: str | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    power_limit_watts: float | None = None
    numa_node: int | None = None
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLink:
    """A pair of boards by nvidia-smi's indices, ``a < b``."""

    a: int
    b: int
    code: PathCode
    generation: int | None = None
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that one source knows. ``masked``: the source has obeyed CUDA_VISIBLE_DEVICES already (torch)."""

    boards: tuple[Board, ...]
    links: tuple[BoardLink, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None
    masked: bool = False


def merge_boards(*sources: tuple[Board, ...]) -> tuple[Board, ...]:
    """Boards by index; where an earlier source does not know a field, a later one fills it."""
    merged: dict[int, Board] = {}
    for board in (board for source in sources for board in source):
        merged[board.index] = _fill(merged.get(board.index, board), board)
    return tuple(merged[index] for index in sorted(merged))


def _fill(board: Board, other: Board) -> Board:
    slices = {s.index: s for s in other.slices}
    missing = {
        field.name: getattr(other, field.name)
        for field in dataclasses.fields(Board)
        if getattr(board, field.name) in (None, ())
    }
    own_slices = tuple(_fill_slice(s, slices.get(s.index, s)) for s in board.slices)
    return dataclasses.replace(board, **(missing | ({"slices": own_slices} if own_slices else {})))


def _fill_slice(part: Slice, other: Slice) -> Slice:
    missing = {f.name: getattr(other, f.name) for f in dataclasses.fields(Slice) if getattr(part, f.name) is None}
    return dataclasses.replace(part, **missing)
