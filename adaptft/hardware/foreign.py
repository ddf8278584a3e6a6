"""Accelerators of other vendors: recognised from their own tools, so that they can be refused by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from adaptft.facts import UnsupportedAccelerator
from adaptft.hardware.matrix import parse_matrices
from adaptft.hardware.text import clean_lines
from adaptft.hardware.tools import ToolError, is_there, run_tool
from adaptft.units import format_bytes

Vendor = Literal["amd", "ascend", "metax"]
# tool -> its argument lists; their texts are read together
TOOLS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rocm-smi": ((), ("--showmeminfo", "vram"), ("--showtopo",)),
    "npu-smi": (("info",), ("info", "-t", "topo")),
    "mx-smi": ((), ("topo", "-m")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What a vendor's tool says. ``links`` counts pairs by kind of link, ``numa_nodes`` is by device."""

    vendor: Vendor
    name: str
    count: int
    memory_bytes: int | None = None
    links: dict[str, int] = field(default_factory=dict)
    hops: int | None = None
    numa_nodes: dict[int, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """One line for the notes."""
        facts = [f"{format_bytes(self.memory_bytes)} each"] if self.memory_bytes else []
        facts += [f"{kind} between {pairs} pairs" for kind, pairs in self.links.items()]
        more = f" ({', '.join(facts)})" if facts else ""
        return f"{self.count} x {self.name}{more} found: not supported yet, adaptft runs on NVIDIA GPUs and on CPUs."


def parse_foreign(text: str) -> Foreign | None:
    """Read what rocm-smi, npu-smi or mx-smi print; None for NVIDIA's and for all other text."""
    text = "\n".join(clean_lines(text))
    return next((read(text) for banner, read in _READERS if re.search(banner, text)), None)


def read_foreign(notes: list[str]) -> tuple[UnsupportedAccelerator, ...]:
    """Ask every vendor's tool that is installed; ``notes`` says plainly what cannot be used."""
    found = []
    for tool, calls in TOOLS.items():
        if not is_there(tool):
            continue
        foreign = parse_foreign("\n".join(_run(tool, arguments, notes) for arguments in calls))
        if foreign is None or not foreign.count:
            notes.append(f"{tool} is installed and lists no device.")
            continue
        notes.append(foreign.sentence())
        found.append(UnsupportedAccelerator(vendor=foreign.vendor, name=foreign.name, count=foreign.count))
    return tuple(found)


def _run(tool: str, arguments: tuple[str, ...], notes: list[str]) -> str:
    try:
        return run_tool(tool, *arguments, timeout_seconds=20)
    except ToolError as reason:
        notes.append(f"{reason}.")
        return ""


def _read_amd(text: str) -> Foreign:
    rows = list(_amd_rows(text.split("\n")))
    listed = set(re.findall(r"^GPU\[(\d+)\]", text, flags=re.MULTILINE)) | {index for index, _ in rows}
    memory = re.search(r"VRAM Total Memory \(B\): *(\d+)", text)
    numa = re.findall(r"^GPU\[(\d+)\][ \t]*: \(Topology\) Numa Node: (\d+)", text, flags=re.MULTILINE)
    hops = [int(cell) for cell in _cells(text, "Hops") if cell.isdecimal()]
    return Foreign(
        vendor="amd",
        name=rows[0][1] if rows else "AMD GPU",
        count=len(listed) or _matrix_size(text),
        memory_bytes=int(memory.group(1)) if memory else None,
        links=dict(Counter(_cells(text, "Link Type"))),
        hops=max(hops, default=None),
        numa_nodes={int(index): int(node) for index, node in numa},
    )


def _amd_rows(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Number and name of each device; rocm-smi gives some a name on an indented second line, others only an id."""
    for line, following in pairwise([*lines, ""]):
        device_id = re.search(r"\b0x[0-9a-f]{4}\b", line)
        if line[:1].isdecimal() and device_id:
            named = following[:1].isspace() and not set(following) & set("(=|")
            yield line.split()[0], following.strip() if named else f"AMD GPU {device_id.group()}"


def _read_ascend(text: str) -> Foreign:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("\n") if line.count("|") > 2]
    devices = [row for row in rows if re.fullmatch(r"\d+ +\w*\d\w*", row[0]) and row[1].isalpha()]
    chips = [row[-1] for row in rows if re.fullmatch(r"[0-9A-F]+:[0-9A-F]+:[0-9A-F.]+", row[1])]
    memory = re.search(r"/ *(\d+)$", chips[0]) if chips else None
    return Foreign(
        vendor="ascend",
        name=f"Ascend {devices[0][0].split()[1]}" if devices else "Ascend NPU",
        count=len(devices) or _matrix_size(text),
        memory_bytes=int(memory.group(1)) * 1024**2 if memory else None,
        links=dict(Counter(_cells(text))),
    )


def _read_metax(text: str) -> Foreign:
    count = re.search(r"Attached GPUs *: *(\d+)", text)
    name = re.search(r"\bMetaX ([A-Z]\d{3}\w*)", text)
    memory = re.search(r"/ *(\d+) MiB", text)
    return Foreign(
        vendor="metax",
        name=f"MetaX {name.group(1)}" if name else "MetaX GPU",
        count=int(count.group(1)) if count else _matrix_size(text),
        memory_bytes=int(memory.group(1)) * 1024**2 if memory else None,
        links=dict(Counter(_cells(text))),
    )


def _cells(text: str, title: str = "") -> list[str]:
    return [cell for matrix in parse_matrices(text) if title in matrix.title for cell in matrix.pairs().values()]


def _matrix_size(text: str) -> int:
    return max((len(matrix.accelerators) for matrix in parse_matrices(text)), default=0)


_READERS: tuple[tuple[str, Callable[[str], Foreign]], ...] = (
    (r"ROCm System Management|VRAM Total Memory", _read_amd),
    (r"MetaX System Management|MetaXLink|MX-SMI", _read_metax),
    (r"npu-smi|\bNPU0\b", _read_ascend),
)
