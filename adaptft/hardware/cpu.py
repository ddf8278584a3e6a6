"""The host processor, from /proc/cpuinfo and lscpu."""

from __future__ import annotations

import re
from dataclasses import dataclass

from adaptft.hardware.text import UnreadableOutput, clean, whole

# Instruction sets that change what is worth running on the CPU, by architecture; the rest of the flags is left out.
X86_FLAGS = (
    "sse4_2", "f16c", "fma", "avx", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16",
)  # fmt: skip
ARM_FLAGS = ("asimd", "fphp", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm", "sme", "sme2")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuText:
    """What one text says; several kinds of core have their names joined by " + "."""

    model_name: str | None = None
    architecture: str | None = None
    logical_cores: int | None = None
    physical_cores: int | None = None
    numa_nodes: int | None = None
    flags: tuple[str, ...] = ()


def parse_lscpu(text: str) -> CpuText:
    """Read ``lscpu`` in English, whole or in part; a machine of several kinds of core has a block for each.

    Raises:
        UnreadableOutput: no ``CPU(s):`` line.
    """
    fields = _fields(text)
    if "CPU(s)" not in fields:
        raise UnreadableOutput("not the output of lscpu")
    blocks = zip(fields.get("Core(s) per socket", []), fields.get("Socket(s)", []), strict=False)
    physical = sum((whole(cores) or 0) * (whole(sockets) or 0) for cores, sockets in blocks)
    words = " ".join(fields.get("Flags", [])).split()
    arm = "ARM" in fields.get("Vendor ID", []) or "asimd" in words
    return CpuText(
        model_name=_joined(fields.get("Model name", [])),
        architecture=fields.get("Architecture", ["aarch64" if arm else None])[0],
        logical_cores=whole(fields["CPU(s)"][0]),
        physical_cores=physical or None,
        numa_nodes=whole(fields.get("NUMA node(s)", [""])[0]),
        flags=_known_flags(words, arm=arm),
    )


def parse_cpuinfo(text: str) -> CpuText:
    """Read /proc/cpuinfo of x86 or Arm (where it names no model and counts no cores).

    Raises:
        UnreadableOutput: no ``processor`` line.
    """
    fields = _fields(text)
    if "processor" not in fields:
        raise UnreadableOutput("not the form of /proc/cpuinfo")
    cores = set(zip(fields.get("physical id", []), fields.get("core id", []), strict=False))
    arm = "Features" in fields
    words = " ".join(fields.get("Features" if arm else "flags", [""])[:1]).split()
    return CpuText(
        model_name=_joined(fields.get("model name", [])),
        architecture="aarch64" if arm else None,
        logical_cores=len(fields["processor"]),
        physical_cores=len(cores) or None,
        flags=_known_flags(words, arm=arm),
    )


def _fields(text: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in clean(text).splitlines():
        label, colon, value = line.partition(":")
        if colon:
            fields.setdefault(label.strip(), []).append(value.strip())
    return fields


def _joined(names: list[str]) -> str | None:
    return " + ".join(dict.fromkeys(re.sub(r"\s+", " ", name) for name in names)) or None


def _known_flags(words: list[str], *, arm: bool) -> tuple[str, ...]:
    present = set(words)
    return tuple(flag for flag in (ARM_FLAGS if arm else X86_FLAGS) if flag in present)
