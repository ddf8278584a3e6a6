"""The square tables that vendors' tools print: devices against devices, then affinity columns.

nvidia-smi, mx-smi, npu-smi and rocm-smi share the grammar: a header of device names (``GPU0``, ``NPU0``,
``NIC0``, ``mlx5_0``), one row each, cells apart by tabs or by blanks, and affinity cells that rows may lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from adaptft.hardware.text import clean_lines

_ACCELERATOR = re.compile(r"[A-Z]PU\d+")
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|Node Affinity|GPU NUMA ID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One table. ``rows`` holds complete rows only, each as long as ``columns``; ``title`` is the line above.

    ``affinity`` is by row and column name (``affinity["GPU0"]["NUMA Affinity"]``), without empty cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    affinity: dict[str, dict[str, str]]

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Columns that are GPUs or NPUs; the others are network cards."""
        return tuple(name for name in self.columns if _ACCELERATOR.fullmatch(name))

    def pairs(self) -> dict[tuple[str, str], str]:
        """The cell of every unordered pair of columns, in column order; either half of the table will do."""
        cells: dict[tuple[str, str], str] = {}
        for row, values in self.rows.items():
            for column, cell in zip(self.columns, values, strict=True):
                first, second = sorted((row, column), key=self.columns.index)
                if first != second:
                    cells.setdefault((first, second), cell)
        return cells


def parse_matrices(text: str) -> tuple[Matrix, ...]:
    """Every table of ``text``, in order; other lines are passed over."""
    lines = [line for line in clean_lines(text) if line.strip()]
    return tuple(_matrices(lines))


def _matrices(lines: list[str]) -> Iterator[Matrix]:
    position = 0
    while position < len(lines):
        if not _ACCELERATOR.fullmatch(lines[position].split()[0]):
            position += 1
            continue
        title = lines[position - 1].strip(" =") if position else ""
        columns, affinity_names = _header(lines[position])
        end = position + 1
        while end < len(lines) and _is_row(lines[end], columns):
            end += 1
        rows = [row for line in lines[position + 1 : end] if (row := _row(line, columns, affinity_names))]
        yield Matrix(
            title=title,
            columns=columns,
            rows={label: cells for label, cells, _ in rows},
            affinity={label: affinity for label, _, affinity in rows},
        )
        position = end


def _header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match = _AFFINITY.search(line)
    cut = match.start() if match else len(line)
    return tuple(line[:cut].split()), tuple(_AFFINITY.findall(line[cut:]))


def _is_row(line: str, columns: tuple[str, ...]) -> bool:
    words = line.split()
    return words[0] in columns and not (len(words) > 1 and _ACCELERATOR.fullmatch(words[1]))


def _row(
    line: str, columns: tuple[str, ...], affinity_names: tuple[str, ...]
) -> tuple[str, tuple[str, ...], dict[str, str]] | None:
    match = re.fullmatch(rf"\s*(\S+)((?:\s+\S+){{{len(columns)}}})(.*)", line)
    if match is None:
        return None
    label, cells, rest = match.groups()
    return label, tuple(cells.split()), _affinity(rest, affinity_names)


def _affinity(rest: str, names: tuple[str, ...]) -> dict[str, str]:
    """Cells by name. Tabs keep empty cells apart; between blanks an empty cell leaves no trace.

    Between blanks the first cell is the CPU list where it looks like one (``0-23,48-71``), else it is missing.
    """
    if "\t" in rest:
        cells = [cell.strip() for cell in rest.split("\t")[1:]]
    else:
        cells = rest.split()
        if len(cells) < len(names) and cells and not re.search(r"[-,]", cells[0]):
            cells = [""] * (len(names) - len(cells)) + cells
    return {name: cell for name, cell in zip(names, cells, strict=False) if cell}
