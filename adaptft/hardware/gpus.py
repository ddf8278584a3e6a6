"""From what a source says of boards to the devices that CUDA will number 0, 1, 2, ..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptft.facts import Gpu, HostMemory, Link, MigSlice
from adaptft.hardware.boards import BoardLink, Reading
from adaptft.hardware.smi import slice_memory_bytes
from adaptft.hardware.visible import Device, usable_devices, visible_devices
from adaptft.units import format_bytes


@dataclass(frozen=True, slots=True)
class Gpus:
    """Devices and links of a machine, with what there is to note about them."""

    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    notes: tuple[str, ...]


def choose_gpus(reading: Reading, environ: Mapping[str, str], host: HostMemory) -> Gpus:
    """Devices that a process with ``environ`` can use, in CUDA's order, and the links between them.

    ``host`` stands in for the memory of a GPU that has none of its own (GB10, Jetson).
    """
    notes = [
        f"GPU {board.index} ({board.name}) is in MIG mode without a slice: nothing can run on it."
        for board in reading.boards
        if board.mig_enabled and not board.slices
    ]
    usable = usable_devices(reading.boards)
    setting = None if reading.masked else environ.get("CUDA_VISIBLE_DEVICES")
    devices, complaint = visible_devices(usable, setting)
    notes += [complaint] if complaint else []
    if len(devices) < len(usable):
        notes.append(f"CUDA_VISIBLE_DEVICES={setting} leaves {len(devices)} of {len(usable)} GPUs.")
    gpus = tuple(_gpu(index, device, host, notes) for index, device in enumerate(devices))
    notes += _numbering_notes(gpus, environ)
    return Gpus(gpus, _links(devices, reading.links), tuple(notes))


def _gpu(index: int, device: Device, host: HostMemory, notes: list[str]) -> Gpu:
    board, part = device.board, device.slice
    total, free = _memory(index, device, host, notes)
    return Gpu(
        index=index,
        name=board.name,
        compute_capability=board.compute_capability,
        memory_total_bytes=total,
        memory_free_bytes=free,
        sm_count=part.sm_count if part else board.sm_count,
        uuid=device.uuid,
        ecc_enabled=board.ecc_enabled,
        mig=MigSlice(profile=part.profile or "unknown", parent=board.name, uuid=part.uuid) if part else None,
        pci_bus_id=board.pci_bus_id,
        pcie_generation=board.pcie_generation,
        pcie_width=board.pcie_width,
        power_limit_watts=board.power_limit_watts,
        numa_node=board.numa_node,
    )


def _memory(index: int, device: Device, host: HostMemory, notes: list[str]) -> tuple[int, int]:
    """Total and free bytes; whatever is assumed is noted."""
    part, board = device.slice, device.board
    total = part.memory_total_bytes if part else board.memory_total_bytes
    free = part.memory_free_bytes if part else board.memory_free_bytes
    if total is None and part:
        total = slice_memory_bytes(part.profile or "")
        if total is not None:
            notes.append(f"GPU {index}: memory taken from the slice's name {part.profile}.")
    if total is None:
        notes.append(f"GPU {index} tells no memory of its own: taken to share the host's.")
        return host.total_bytes, host.available_bytes
    if free is None:
        notes.append(f"GPU {index}: free memory is not known, taken as all {format_bytes(total)}.")
    return total, min(total, total if free is None else free)


def _links(devices: tuple[Device, ...], board_links: tuple[BoardLink, ...]) -> tuple[Link, ...]:
    """Links between visible whole boards, under CUDA's numbers; slices cannot reach one another."""
    numbers = {device.board.index: number for number, device in enumerate(devices) if device.slice is None}
    links = []
    for link in board_links:
        if link.a in numbers and link.b in numbers:
            a, b = sorted((numbers[link.a], numbers[link.b]))
            links.append(
                Link(
                    a=a,
                    b=b,
                    path=link.code.path,
                    nvlink_width=link.code.width,
                    nvlink_generation=link.generation,
                    peer_access=link.peer_access,
                )
            )
    return tuple(sorted(links, key=lambda link: (link.a, link.b)))


def _numbering_notes(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> list[str]:
    notes = []
    if sum(gpu.mig is not None for gpu in gpus) > 1:
        notes.append("A process uses one MIG slice at a time: name it in CUDA_VISIBLE_DEVICES by its MIG- UUID.")
    if len({gpu.name for gpu in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append("GPUs of different kinds: set CUDA_DEVICE_ORDER=PCI_BUS_ID, else CUDA puts the fastest first.")
    return notes
