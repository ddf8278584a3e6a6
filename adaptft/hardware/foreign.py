"""Accelerators of other vendors: recognised from their own tools, so that they can be refused by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from adaptft.facts import UnsupportedAccelerator
from adaptft.hardware.matrix import parse_matrices
from adaptft.hardware.text import clean
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
    text = clean(text)
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
    rows = re.findall(r"^(\d+)\s+.*?\b(0x[0-9a-f]{4})\b.*(?:\n[ \t]+([^\n(=]*\S)[ \t]*$)?", text, flags=re.MULTILINE)
    listed = set(re.findall(r"^GPU\[(\d+)\]", text, flags=re.MULTILINE)) | {index for index, _, _ in rows}
    memory = re.search(r"VRAM Total Memory \(B\):\s*(\d+)", text)
    numa = re.findall(r"^GPU\[(\d+)\].*Numa Node:\s*(\d+)", text, flags=re.MULTILINE)
    hops = [int(cell) for cell in _cells(text, "Hops") if cell.isdecimal()]
    _, device_id, name = rows[0] if rows else ("", "", "")
    return Foreign(
        vendor="amd",
        name=name or f"AMD GPU {device_id}".strip(),
        count=len(listed) or _matrix_size(text),
        memory_bytes=int(memory.group(1)) if memory else None,
        links=dict(Counter(_cells(text, "Link Type"))),
        hops=max(hops, default=None),
        numa_nodes={int(index): int(node) for index, node in numa},
    )


def _read_ascend(text: str) -> Foreign:
    names = re.findall(r"^\|\s*\d+\s+(\w*\d\w*)\s*\|\s*[A-Za-z]+\s*\|", text, flags=re.MULTILINE)
    memory = re.search(
        r"/\s*(\d+)\s*\|\s*$", "\n".join(re.findall(r"^\|.*:\d\d\.\d.*\|", text, flags=re.MULTILINE)[:1])
    )
    return Foreign(
        vendor="ascend",
        name=f"Ascend {names[0]}" if names else "Ascend NPU",
        count=len(names) or _matrix_size(text),
        memory_bytes=int(memory.group(1)) * 1024**2 if memory else None,
        links=dict(Counter(_cells(text))),
    )


def _read_metax(text: str) -> Foreign:
    count = re.search(r"Attached GPUs\s*:\s*(\d+)", text)
    name = re.search(r"\bMetaX ([A-Z]\d{3}\w*)", text)
    memory = re.search(r"/\s*(\d+) MiB", text)
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
