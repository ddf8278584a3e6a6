"""Known GPUs by name, in anybody's spelling. A probe beats the table wherever both speak: boards are capped and cut."""

from __future__ import annotations

import re
from difflib import get_close_matches

from adaptft.errors import RequestError
from adaptft.facts import Gpu, MigSlice
from adaptft.policy.gpu_table import OTHER_VENDORS, ROWS, GpuModel
from adaptft.policy.mig import slice_of
from adaptft.units import GiB

GPU_MODELS: dict[str, GpuModel] = {row.key: row for row in ROWS}
# boards with one name differ in memory only: the first row has what else the name says
_BY_NAME: dict[str, GpuModel] = {name: row for row in reversed(ROWS) for name in row.names}

_MAKERS_WORDS = re.compile(r"nvidia|geforce|rtx|tesla|quadro|generation|[^a-z0-9]")
_NOMINAL_GB = (8, 10, 11, 12, 16, 22, 24, 32, 40, 48, 80, 94, 96, 128, 141, 144, 180, 186, 270, 279)
_ALSO = {
    "h100-sxm": "h100", "h100-sxm5": "h100", "h100-sxm5-80g": "h100", "h100-sxm-80g": "h100",
    "h100-sxm5-96g": "h100-96g", "h200-sxm": "h200", "a100-sxm-40g": "a100-40g", "a100-sxm-80g": "a100-80g",
    "v100-sxm2-16g": "v100-16g", "v100-sxm2-32g": "v100-32g", "a100-80g-pcie": "a100-pcie-80g", "dgx-spark": "gb10",
}  # fmt: skip


def known_gpu(gpu: Gpu) -> GpuModel | None:
    """The table's row for a probed GPU, by its exact name (a MIG slice: by its board's)."""
    return _BY_NAME.get(gpu.mig.parent if gpu.mig else gpu.name)


def nominal_gb(row: GpuModel) -> int:
    """The memory that a board is sold with, in GB: 24 for the 22.06 GiB of an A10."""
    return next(size for size in _NOMINAL_GB if size >= row.memory_gib)


def _squash(name: str) -> str:
    """``NVIDIA A100-SXM4-80GB`` as ``a100sxm480g``: without the maker's words, blanks and dashes."""
    return _MAKERS_WORDS.sub("", re.sub(r"(\d)\s*gi?b\b", r"\1g", name.lower()))


def _spellings() -> dict[str, dict[str, GpuModel]]:
    """Squashed names to the rows that they can mean, by key; keys win over everything else."""
    table: dict[str, dict[str, GpuModel]] = {}
    for row in ROWS:
        memory = nominal_gb(row)
        for name in (*row.names, f"{row.key}-{memory}g", *(f"{name} {memory}GB" for name in row.names)):
            table.setdefault(_squash(name), {})[row.key] = row
    keys = {**{row.key: row for row in ROWS}, **{also: GPU_MODELS[key] for also, key in _ALSO.items()}}
    return table | {_squash(key): {row.key: row} for key, row in keys.items()}


_SPELLINGS = _spellings()


def row_named(name: str) -> GpuModel:
    """The one row that ``name`` can mean, in a key's or the maker's or anybody's spelling.

    Raises:
        RequestError: none, or several; they are named.
    """
    asked = _squash(name)
    found = _SPELLINGS.get(asked, {})
    if len(found) == 1:
        return next(iter(found.values()))
    longer = {
        key: row for spelling, rows in _SPELLINGS.items() if spelling.startswith(asked) for key, row in rows.items()
    }
    if len(asked) > 1 and (meant := found or longer):
        rows = ", ".join(f"{row.key} ({row.names[0]}, {row.memory_gib:.0f} GiB)" for row in meant.values())
        several = "is one of several" if len(meant) > 1 else "is not the whole name of a GPU"
        raise RequestError(f"--gpu {name} {several}.", fix=f"Write the one you mean: {rows}.")
    raise _unknown(name, asked)


def _unknown(name: str, asked: str) -> RequestError:
    for other, vendor in OTHER_VENDORS.items():
        if len(asked) > 3 and asked in _squash(other):
            return RequestError(f"{other}: adaptft does not train on {vendor} yet.", fix="Name an NVIDIA GPU.")
    if asked == "cpu":
        return RequestError("--gpu cpu names no GPU.", fix="Leave --gpu out, and plan for the CPU with --device cpu.")
    near = get_close_matches(asked, GPU_MODELS, n=3, cutoff=0.4)
    return RequestError(
        f"There is no GPU {name!r} in the table.",
        fix=f"Did you mean {', '.join(near) or 'a100-80g'}? All: {', '.join(GPU_MODELS)}; --gpu-file for a new one.",
    )


def gpu_of(row: GpuModel, *, profile: str | None = None, index: int = 0) -> Gpu:
    """A board of ``row``, idle: the whole of it, or the MIG slice that ``profile`` names (``3g.40gb``).

    Raises:
        RequestError: the board has no such slices.
    """
    memory, processors, mig = int(row.memory_gib * GiB), row.sm_count, None
    if profile is not None:
        part = slice_of(row, nominal_gb(row), profile)
        memory, processors = int(memory * part.memory_share), part.sm_count
        mig = MigSlice(profile=part.profile, parent=row.names[0])
    return Gpu(
        index=index,
        name=row.names[0],
        compute_capability=row.compute_capability,
        memory_total_bytes=memory,
        memory_free_bytes=memory,
        sm_count=processors,
        mig=mig,
        pcie_generation=row.pcie_generation,
        pcie_width=16,
    )


def gpu_named(name: str, *, index: int = 0) -> Gpu:
    """The GPU that ``--gpu NAME`` means: ``a100-80g``, or ``a100-80g:mig-3g.40gb`` for a slice of one.

    Raises:
        RequestError: no such GPU, or several; they are named.
    """
    board, _, profile = name.partition(":")
    return gpu_of(row_named(board), profile=profile.lower().removeprefix("mig-") or None, index=index)
