"""The last resort: what torch says of the GPUs. ``python -m adaptft.hardware.torch_devices`` prints it.

Torch runs in a process of its own, so that a driver that hangs can be given up and no CUDA context stays behind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import msgspec

from adaptft.hardware.boards import Board, Reading, Slice
from adaptft.hardware.text import UnreadableOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """``torch.cuda.get_device_properties`` in the order that CUDA numbers the devices."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    memory_total_bytes: int
    memory_free_bytes: int
    sm_count: int
    uuid: str | None


def parse_torch(text: str) -> Reading:
    """Read the JSON line that ``main`` prints; torch has obeyed CUDA_VISIBLE_DEVICES already.

    Raises:
        UnreadableOutput: there is no such line.
    """
    line = next((line for line in reversed(text.splitlines()) if line.startswith("[")), "")
    try:
        devices = msgspec.json.decode(line, type=list[TorchDevice])
    except msgspec.DecodeError as cause:
        raise UnreadableOutput(f"torch told nothing of its devices: {cause}") from cause
    return Reading(boards=tuple(_board(device) for device in devices), masked=True)


def _board(device: TorchDevice) -> Board:
    name, _, profile = device.name.partition(" MIG ")
    part = Slice(
        index=0,
        profile=profile,
        uuid=device.uuid,
        memory_total_bytes=device.memory_total_bytes,
        memory_free_bytes=device.memory_free_bytes,
        sm_count=device.sm_count,
    )
    return Board(**asdict(device) | {"name": name, "mig_enabled": bool(profile), "slices": (part,) if profile else ()})


def main() -> None:
    """Print one JSON list of ``TorchDevice`` on one line."""
    import torch

    print(json.dumps([asdict(_ask_torch(index)) for index in range(torch.cuda.device_count())]))


def _ask_torch(index: int) -> TorchDevice:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    uuid = getattr(properties, "uuid", None)
    return TorchDevice(
        index=index,
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        memory_total_bytes=total,
        memory_free_bytes=free,
        sm_count=properties.multi_processor_count,
        uuid=f"GPU-{uuid}" if uuid else None,
    )


if __name__ == "__main__":
    main()
