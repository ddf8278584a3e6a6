"""Text of ``nvidia-smi``: the list (-L), the query (csv) and the screen."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from adaptft.hardware.boards import Board, Slice
from adaptft.hardware.text import (
    UnreadableOutput,
    capability,
    clean,
    clean_lines,
    known,
    num_bytes,
    number,
    switch,
    whole,
)

_LISTED_GPU = re.compile(r"(?:^|\s)GPU (\d{1,3}(?:,\s?\d{1,3})*):\s+(\S.*?)\s*(?:\(UUID:\s*([^)\s]+)\s*\))?\s*$")
_LISTED_SLICE = re.compile(r"^\s*MIG (\S+)\s+Device\s+(\d+):\s*(?:\(UUID:\s*([^)]+?)\s*\))?\s*$")
_SCREEN_FIRST = re.compile(
    r"\|\s*(\d+)\s+(\S.*?)\s+(?:On|Off|N/A)\s*\|\s*([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s+\S+\s*\|\s*(\S+)\s*\|"
)
_SCREEN_SECOND = re.compile(r"\|.*?(?:/\s*(\d+)W|N/A)\s*\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|")
_SCREEN_MIG_MODE = re.compile(r"\|\s*\|\s*\|\s*(Enabled|Disabled|N/A)\*?\s*\|")
_SCREEN_SLICE = re.compile(r"\|\s*(\d+)\s+\d+\s+\d+\s+(\d+)\s*\|\s*(\d+)MiB\s*/\s*(\d+)MiB\s*\|\s*(\d+)\s")

# column of --query-gpu -> (field of Board, reader of a cell)
COLUMNS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "index": ("index", whole),
    "name": ("name", known),
    "uuid": ("uuid", known),
    "memory.total": ("memory_total_bytes", num_bytes),
    "memory.free": ("memory_free_bytes", num_bytes),
    "compute_cap": ("compute_capability", capability),
    "ecc.mode.current": ("ecc_enabled", switch),
    "mig.mode.current": ("mig_enabled", switch),
    "pci.bus_id": ("pci_bus_id", known),
    "pcie.link.gen.max": ("pcie_generation", whole),
    "pcie.link.width.max": ("pcie_width", whole),
    "power.limit": ("power_limit_watts", number),
}
_SAME_COLUMN = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}


def parse_list(text: str) -> tuple[Board, ...]:
    """Boards and their MIG slices from ``nvidia-smi -L``; nothing found is no board.

    The lines ``GPU 0: name`` and ``GPU 0,1,2,3: name`` of pasted environment reports have the same form.
    """
    boards: dict[int, Board] = {}
    slices: dict[int, list[Slice]] = {}
    last_listed = -1
    for line in clean_lines(text):
        if found := _LISTED_SLICE.match(line):
            profile, number_on_board, uuid = found.groups()
            slices.setdefault(last_listed, []).append(Slice(index=int(number_on_board), profile=profile, uuid=uuid))
        elif found := _LISTED_GPU.search(line):
            indices, name, uuid = found.groups()
            for last_listed in map(int, indices.split(",")):
                boards[last_listed] = Board(index=last_listed, name=name, uuid=uuid)
    return tuple(_with_slices(board, tuple(slices.get(index, ()))) for index, board in boards.items())


def _with_slices(board: Board, slices: tuple[Slice, ...]) -> Board:
    if not slices:
        return board
    return Board(index=board.index, name=board.name, uuid=board.uuid, mig_enabled=True, slices=slices)


def parse_query(text: str, columns: tuple[str, ...] | None = None) -> tuple[Board, ...]:
    """Boards from ``nvidia-smi --query-gpu=... --format=csv`` with or without header and units.

    Args:
        columns: what was asked for, needed where the text has no header; unknown columns are passed over.

    Raises:
        UnreadableOutput: a row without a usable index and name, or no header where ``columns`` is None.
    """
    rows = _csv_rows(text)
    start = next((i for i, row in enumerate(rows) if _column(row[0]) in COLUMNS), None)
    if start is not None:
        columns, rows = tuple(_column(cell) for cell in rows[start]), rows[start + 1 :]
    if columns is None:
        raise UnreadableOutput("csv of nvidia-smi without a header")
    return tuple(_board(dict(zip(columns, row, strict=False))) for row in rows)


def _csv_rows(text: str) -> list[list[str]]:
    """Rows of more than one cell; nvidia-smi neither quotes nor escapes."""
    return [[cell.strip() for cell in line.split(",")] for line in clean_lines(text) if "," in line]


def _column(cell: str) -> str:
    name = cell.split("[")[0].strip().lower()
    return _SAME_COLUMN.get(name, name)


def _board(cells: dict[str, str]) -> Board:
    fields = {field: read(cells[column]) for column, (field, read) in COLUMNS.items() if column in cells}
    if fields.get("index") is None or fields.get("name") is None:
        raise UnreadableOutput(f"nvidia-smi query row without index and name: {', '.join(cells.values())[:80]}")
    return Board(**fields)


def parse_query_column(text: str, column: str) -> str | None:
    """One cell that is the same for all GPUs (``driver_version``) of a csv with a header."""
    rows = _csv_rows(text)
    for header, first in itertools.pairwise(rows):
        names = [_column(cell) for cell in header]
        if column in names and len(first) == len(header):
            return known(first[names.index(column)])
    return None


def rejected_column(text: str) -> str | None:
    """The column an older nvidia-smi does not know, from its message, else None."""
    match = re.search(r'Field "([^"]+)" is not a valid field', clean(text))
    return match.group(1) if match else None


def parse_screen(text: str) -> tuple[Board, ...]:
    """Boards, their MIG mode and the memory of their slices from the plain screen.

    Long names end in ``...`` there, so ``-L`` and the query know them better. ECC is on where an error count
    stands. The screen may be cut at either end.
    """
    boards: dict[int, dict[str, Any]] = {}
    slices: dict[int, list[Slice]] = {}
    current: dict[str, Any] = {}
    for line in clean_lines(text):
        if found := _SCREEN_FIRST.search(line):
            current = {"index": int(found.group(1)), "name": found.group(2), "pci_bus_id": found.group(3)}
            current["ecc_enabled"] = True if found.group(4).isdecimal() else switch(found.group(4))
            boards[current["index"]] = current
        elif found := _SCREEN_SLICE.search(line):
            of_board, index, used_mib, total_mib, sms = (int(group) for group in found.groups())
            slices.setdefault(of_board, []).append(_screen_slice(index, used_mib, total_mib, sms))
        elif current and (found := _SCREEN_SECOND.search(line)):
            power, used, total = found.groups()
            current["power_limit_watts"] = number(power or "")
            current["memory_total_bytes"] = int(total) * 1024**2
            current["memory_free_bytes"] = (int(total) - int(used)) * 1024**2
        elif current and (found := _SCREEN_MIG_MODE.search(line)):
            current["mig_enabled"] = switch(found.group(1))
    return tuple(Board(**fields, slices=tuple(slices.get(index, ()))) for index, fields in boards.items())


def _screen_slice(index: int, used_mib: int, total_mib: int, sms: int) -> Slice:
    return Slice(
        index=index,
        memory_total_bytes=total_mib * 1024**2,
        memory_free_bytes=(total_mib - used_mib) * 1024**2,
        sm_count=sms,
    )


def parse_versions(text: str) -> tuple[str | None, str | None]:
    """``(driver, highest CUDA of the driver)`` from the screen's first line, or the driver from a pasted report."""
    return _version(r"Driver Version", text), _version(r"CUDA Version", text)


def _version(label: str, text: str) -> str | None:
    match = re.search(label + r":\s*(\d[\w.]*)", clean(text), flags=re.IGNORECASE)
    return match.group(1) if match else None


def slice_memory_bytes(profile: str) -> int | None:
    """Memory of a slice from its name, a little low: ``1g.5gb`` -> 4.75 GiB, ``3g.40gb`` -> 38 GiB.

    NVIDIA's names round up; real slices have 0.95 (1g.5gb: 4864 MiB) to 0.99 (3g.40gb: 40448 MiB) of the name.
    """
    match = re.search(r"\.(\d+)gb", profile)
    return int(int(match.group(1)) * 0.95 * 1024**3) if match else None
