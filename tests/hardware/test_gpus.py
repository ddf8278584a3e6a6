"""Which devices CUDA numbers 0, 1, 2 ... and how they are joined."""

from __future__ import annotations

import pytest

from adaptft.facts import HostMemory
from adaptft.hardware.boards import Board, BoardLink, Reading, Slice
from adaptft.hardware.gpus import choose_gpus
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.topology import PathCode
from adaptft.hardware.torch_devices import parse_torch
from adaptft.hardware.visible import usable_devices, visible_devices

GIB = 1024**3
HOST = HostMemory(total_bytes=128 * GIB, available_bytes=100 * GIB)


def board(index: int, *, slices: tuple[Slice, ...] = (), mig: bool | None = None, name: str = "Board") -> Board:
    return Board(
        index=index, name=name, uuid=f"GPU-{'ab'[index % 2]}{index}", memory_total_bytes=24 * GIB,
        memory_free_bytes=20 * GIB, compute_capability=(8, 9), mig_enabled=mig, slices=slices,
    )  # fmt: skip


WHOLE = tuple(board(index) for index in range(4))
SLICES = tuple(Slice(index=i, profile="1g.10gb", uuid=f"MIG-{'xy'[i]}{i}") for i in range(2))
MIXED = (board(0, slices=SLICES, mig=True), board(1))

# machine, CUDA_VISIBLE_DEVICES -> UUIDs of the devices in CUDA's order
SETTINGS: dict[str, tuple[tuple[Board, ...], str | None, list[str]]] = {
    "unset is all": (WHOLE, None, ["GPU-a0", "GPU-b1", "GPU-a2", "GPU-b3"]),
    "empty is none": (WHOLE, "", []),
    "-1 is none": (WHOLE, "-1", []),
    "blank is none": (WHOLE, "  ", []),
    "one index": (WHOLE, "2", ["GPU-a2"]),
    "the order counts": (WHOLE, "3,0", ["GPU-b3", "GPU-a0"]),
    "blanks are allowed": (WHOLE, " 1 , 2 ", ["GPU-b1", "GPU-a2"]),
    "-1 ends the list": (WHOLE, "1,-1,2", ["GPU-b1"]),
    "an unknown index ends the list": (WHOLE, "0,9,1", ["GPU-a0"]),
    "rubbish ends the list": (WHOLE, "0,x,1", ["GPU-a0"]),
    "digits before rubbish count": (WHOLE, "1gpu,2", ["GPU-b1", "GPU-a2"]),
    "twice the same is none": (WHOLE, "1,1", []),
    "a full UUID": (WHOLE, "GPU-b3", ["GPU-b3"]),
    "a unique beginning": (WHOLE, "GPU-b1,GPU-a2", ["GPU-b1", "GPU-a2"]),
    "a beginning of two is none": (WHOLE, "GPU-a", []),
    "the bare prefix is none": (WHOLE, "GPU-", []),
    "an index after a UUID ends the list": (WHOLE, "GPU-b1,2", ["GPU-b1"]),
    "slices stand for their board": (MIXED, None, ["MIG-x0", "MIG-y1", "GPU-b1"]),
    "a slice by UUID": (MIXED, "MIG-y1", ["MIG-y1"]),
    "a slice by a unique beginning": (MIXED, "MIG-y", ["MIG-y1"]),
    "a board in MIG mode means its first slice": (MIXED, "0", ["MIG-x0"]),
    "the UUID of a board in MIG mode means its first slice": (MIXED, "GPU-a0", ["MIG-x0"]),
    "an unknown slice is none": (MIXED, "MIG-z", []),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_cuda_visible_devices(name: str) -> None:
    boards, setting, uuids = SETTINGS[name]
    devices, _ = visible_devices(usable_devices(boards), setting)
    assert [device.uuid for device in devices] == uuids


@pytest.mark.parametrize(
    ("setting", "note"),
    [("-1", None), ("", None), ("9", "names 9, which is no GPU"), ("1,1", "names 1 twice"), ("0,GPU-a0", "GPU-a0")],
)
def test_a_setting_that_names_nothing_is_noted(setting: str, note: str | None) -> None:
    _, complaint = visible_devices(usable_devices(WHOLE), setting)
    assert complaint is None if note is None else note in (complaint or "")


def test_devices_are_numbered_as_cuda_does_and_links_follow() -> None:
    links = tuple(
        BoardLink(a=a, b=b, code=PathCode("NV", 4) if (a, b) == (1, 3) else PathCode("SYS"), peer_access=True)
        for a, b in [(0, 1), (0, 3), (1, 3)]
    )
    chosen = choose_gpus(Reading(boards=WHOLE, links=links), {"CUDA_VISIBLE_DEVICES": "3,1"}, HOST)
    assert [(gpu.index, gpu.uuid) for gpu in chosen.gpus] == [(0, "GPU-b3"), (1, "GPU-b1")]
    assert [(link.a, link.b, link.path, link.nvlink_width) for link in chosen.links] == [(0, 1, "NV", 4)]
    assert chosen.notes == ("CUDA_VISIBLE_DEVICES=3,1 leaves 2 of 4 GPUs.",)


def test_a_source_that_obeyed_the_setting_is_not_masked_twice() -> None:
    reading = Reading(boards=(board(0),), masked=True)
    assert len(choose_gpus(reading, {"CUDA_VISIBLE_DEVICES": "3"}, HOST).gpus) == 1


def test_a_slice_is_never_as_large_as_its_board() -> None:
    chosen = choose_gpus(Reading(boards=(board(0, slices=SLICES, mig=True),)), {}, HOST)
    assert [gpu.memory_total_bytes for gpu in chosen.gpus] == [int(9.5 * GIB)] * 2
    assert [gpu.mig.parent for gpu in chosen.gpus if gpu.mig] == ["Board", "Board"]
    assert any("memory taken from the slice's name 1g.10gb" in note for note in chosen.notes)
    assert any("one MIG slice at a time" in note for note in chosen.notes)


def test_slices_have_no_links() -> None:
    link = BoardLink(a=0, b=1, code=PathCode("NV", 12))
    assert choose_gpus(Reading(boards=MIXED, links=(link,)), {}, HOST).links == ()


def test_a_board_in_mig_mode_without_a_slice_is_no_device() -> None:
    chosen = choose_gpus(Reading(boards=(board(0, mig=True),)), {}, HOST)
    assert chosen.gpus == ()
    assert chosen.notes == ("GPU 0 (Board) is in MIG mode without a slice: nothing can run on it.",)


def test_a_gpu_without_memory_of_its_own_shares_the_hosts() -> None:
    chosen = choose_gpus(Reading(boards=(Board(index=0, name="Unified"),)), {}, HOST)
    gpu = chosen.gpus[0]
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (HOST.total_bytes, HOST.available_bytes)
    assert "taken to share the host's" in chosen.notes[0]


def test_unknown_free_memory_is_noted() -> None:
    chosen = choose_gpus(Reading(boards=(Board(index=0, name="B", memory_total_bytes=8 * GIB),)), {}, HOST)
    assert chosen.gpus[0].memory_free_bytes == 8 * GIB
    assert chosen.notes == ("GPU 0: free memory is not known, taken as all 8.0 GiB.",)


@pytest.mark.parametrize(("environ", "noted"), [({}, True), ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False)])
def test_cuda_may_number_different_gpus_otherwise(environ: dict[str, str], noted: bool) -> None:
    chosen = choose_gpus(Reading(boards=(board(0, name="Slow"), board(1, name="Fast"))), environ, HOST)
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in chosen.notes) == noted


def test_what_torch_says_is_masked_and_knows_slices() -> None:
    text = (
        'a warning of torch\n[{"index": 0, "name": "NVIDIA A900 MIG 1g.5gb", "compute_capability": [8, 0], '
        '"memory_total_bytes": 5000, "memory_free_bytes": 4000, "sm_count": 14, "uuid": null}]\n'
    )
    reading = parse_torch(text)
    gpu = choose_gpus(reading, {"CUDA_VISIBLE_DEVICES": "MIG-whatever"}, HOST).gpus[0]
    assert (gpu.name, gpu.compute_capability, gpu.sm_count, gpu.memory_total_bytes) == ("NVIDIA A900", (8, 0), 14, 5000)
    assert gpu.mig is not None
    assert gpu.mig.profile == "1g.5gb"


@pytest.mark.parametrize("text", ["", "Traceback ...", "[1, 2", '[{"index": 0}]'])
def test_torch_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse_torch(text)
