"""MIG: the slices that a board can be cut into.

Compute is cut into 7 slices (4 on some boards), memory into 8 (4), and a profile's name says both: ``3g.40gb`` is
3 compute slices and 40 GB. Source: NVIDIA MIG User Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import floor

from adaptft.errors import RequestError
from adaptft.policy.gpu_table import GpuModel

# compute slices of the board -> (compute slices, share of the memory) of each profile
_PROFILES: dict[int, tuple[tuple[int, float], ...]] = {
    7: ((1, 1 / 8), (1, 2 / 8), (2, 2 / 8), (3, 4 / 8), (4, 4 / 8), (7, 1.0)),
    4: ((1, 1 / 4), (2, 2 / 4), (4, 1.0)),
}
_SM_COUNTS: dict[int, dict[int, int]] = {
    108: {1: 14, 2: 28, 3: 42, 4: 56, 7: 98},
    132: {1: 16, 2: 32, 3: 60, 4: 64, 7: 132},
    56: {1: 14, 2: 28, 4: 56},
}
"""SMs of a slice by those of the board, as the guide prints them for A100, H100/H200 and A30."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a board: its SMs, and its share of the memory."""

    profile: str
    sm_count: int
    memory_share: float


def slices(row: GpuModel, board_gb: int) -> dict[str, Slice]:
    """All profiles of a board that is sold with ``board_gb``, by name; none where it cannot be cut."""
    found = (
        Slice(f"{compute}g.{floor(board_gb * share + 0.5)}gb", _sm_count(row, compute), share)
        for compute, share in _PROFILES.get(row.mig_slices, ())
    )
    return {part.profile: part for part in found}


def _sm_count(row: GpuModel, compute: int) -> int:
    """As the guide says; for other boards the slice's share, in whole pairs of SMs (estimated)."""
    known = _SM_COUNTS.get(row.sm_count, {})
    return known.get(compute) or row.sm_count * compute // row.mig_slices // 2 * 2


def slice_of(row: GpuModel, board_gb: int, profile: str) -> Slice:
    """The slice that ``profile`` names.

    Raises:
        RequestError: the board cannot be cut, or not like this; its profiles are named.
    """
    there = slices(row, board_gb)
    if profile in there:
        return there[profile]
    if not there:
        raise RequestError(
            f"{row.names[0]} cannot be cut into MIG slices.", fix=f"Plan for the whole board: --gpu {row.key}"
        )
    near = get_close_matches(profile, there, n=1, cutoff=0)
    raise RequestError(
        f"{row.names[0]} has no MIG profile {profile}.",
        fix=f"Did you mean --gpu {row.key}:mig-{near[0]}? Its profiles: {', '.join(there)}.",
    )
