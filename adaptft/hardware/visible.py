"""Which boards and slices CUDA may use: MIG mode first, then CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import re
from dataclasses import dataclass

from adaptft.hardware.boards import Board, Slice


@dataclass(frozen=True, slots=True)
class Device:
    """A board, or one slice of it."""

    board: Board
    slice: Slice | None = None

    @property
    def uuid(self) -> str | None:
        """What addresses the device: the slice's own UUID, else the board's."""
        return self.slice.uuid if self.slice else self.board.uuid


def usable_devices(boards: tuple[Board, ...]) -> tuple[Device, ...]:
    """Boards without MIG and the slices of boards with MIG; a board in MIG mode is never a device itself."""
    devices: list[Device] = []
    for board in boards:
        if board.slices:
            devices += [Device(board, part) for part in board.slices]
        elif not board.mig_enabled:
            devices.append(Device(board))
    return tuple(devices)


def visible_devices(devices: tuple[Device, ...], setting: str | None) -> tuple[tuple[Device, ...], str | None]:
    """The devices that CUDA_VISIBLE_DEVICES leaves, in its order, and a note where it names what is not there.

    CUDA's rules: unset is all; an entry is nvidia-smi's index, or the UUID or the unique beginning of the UUID of a
    board or slice; the first entry decides which of the three kinds all have; reading stops at the first entry
    that means nothing (``-1`` is the usual one); the same device twice is no device at all. The index of a board in
    MIG mode means its first slice.
    """
    if setting is None:
        return devices, None
    entries = [entry.strip() for entry in setting.split(",")]
    prefix = next((p for p in ("GPU-", "MIG-") if entries[0].startswith(p)), None)
    chosen: list[Device] = []
    for entry in entries:
        device = _by_index(devices, entry) if prefix is None else _by_uuid(devices, entry, prefix)
        if device is None:
            return tuple(chosen), _complaint(entry)
        if device in chosen:
            return (), f"CUDA_VISIBLE_DEVICES names {entry} twice: CUDA then uses no GPU."
        chosen.append(device)
    return tuple(chosen), None


def _by_index(devices: tuple[Device, ...], entry: str) -> Device | None:
    match = re.match(r"\+?(\d+)", entry)
    return next((d for d in devices if match and d.board.index == int(match.group(1))), None)


def _by_uuid(devices: tuple[Device, ...], entry: str, prefix: str) -> Device | None:
    if not entry.startswith(prefix) or entry == prefix:
        return None
    if prefix == "GPU-":
        boards = {d.board.index: d for d in reversed(devices) if (d.board.uuid or "").startswith(entry)}
        return next(iter(boards.values())) if len(boards) == 1 else None
    found = [d for d in devices if d.slice and (d.slice.uuid or "").startswith(entry)]
    return found[0] if len(found) == 1 else None


def _complaint(entry: str) -> str | None:
    if entry in ("", "-1", "NoDevFiles"):
        return None
    return f"CUDA_VISIBLE_DEVICES names {entry}, which is no GPU here: CUDA passes over it and all that follows."
