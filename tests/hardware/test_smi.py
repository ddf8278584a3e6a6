"""nvidia-smi's list, query and screen, with the columns that older drivers and odd boards lack."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptft.hardware.boards import merge_boards
from adaptft.hardware.smi import (
    parse_list,
    parse_query,
    parse_query_column,
    parse_screen,
    parse_versions,
    rejected_column,
    slice_memory_bytes,
)
from adaptft.hardware.text import UnreadableOutput

MIB = 1024**2
MIG_LIST = (
    "GPU 0: NVIDIA H900 (UUID: GPU-aaaa0000)\n"
    "  MIG 2g.20gb     Device  0: (UUID: MIG-bbbb0000)\n"
    "  MIG 1g.10gb+me  Device  1: (UUID: MIG-bbbb0001)\n"
    "GPU 1: NVIDIA H900 (UUID: GPU-aaaa0001)\n"
)
MIG_SCREEN = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 999.10.01    Driver Version: 999.10.01    CUDA Version: 19.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
|===============================+======================+======================|
|   0  NVIDIA H900 80...   On   | 00000000:1A:00.0 Off |                   On |
| N/A   30C    P0    70W / 700W |     45MiB / 81559MiB |     N/A      Default |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+
|   1  NVIDIA H900 80...   On   | 00000000:2A:00.0 Off |                  Off |
| N/A   ERR!   P0    N/A /  N/A |    100MiB / 81559MiB |      0%      Default |
|                               |                      |            Disabled* |
+-------------------------------+----------------------+----------------------+
| MIG devices:                                                                |
+------------------+----------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |
|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|
|==================+======================+===========+=======================|
|  0    3   0   0  |     19MiB / 20096MiB | 28      0 |  2   0    1    0    0 |
|                  |      0MiB / 32767MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
|  0    9   0   1  |     10MiB /  9984MiB | 14      0 |  1   0    1    1    1 |
|                  |      0MiB / 16383MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
"""


def test_list_knows_slices_of_each_board() -> None:
    first, second = parse_list(MIG_LIST)
    assert [(part.index, part.profile, part.uuid) for part in first.slices] == [
        (0, "2g.20gb", "MIG-bbbb0000"), (1, "1g.10gb+me", "MIG-bbbb0001"),
    ]  # fmt: skip
    assert (first.mig_enabled, second.mig_enabled, second.slices) == (True, None, ())


# line -> (index, name, uuid) of each board
LINES = {
    "GPU 0: Made-up GPU (UUID: GPU-1)": [(0, "Made-up GPU", "GPU-1")],
    "GPU 0: Made-up GPU": [(0, "Made-up GPU", None)],
    "GPU 0,1,2: Made-up GPU": [(0, "Made-up GPU", None), (1, "Made-up GPU", None), (2, "Made-up GPU", None)],
    "GPU models and configuration: GPU 0: Made-up GPU": [(0, "Made-up GPU", None)],
    "GPU models and configuration: \nGPU 0: A\nGPU 1: B\n": [(0, "A", None), (1, "B", None)],
    "\x1b[1mGPU 12: Name (rev. 2) (UUID: GPU-9)\x1b[0m\r": [(12, "Name (rev. 2)", "GPU-9")],
    "No devices found.": [],
    "Unable to determine the device handle for GPU 0000:41:00.0: Unknown Error": [],
    "": [],
}


@pytest.mark.parametrize("text", LINES)
def test_list_lines(text: str) -> None:
    assert [(board.index, board.name, board.uuid) for board in parse_list(text)] == LINES[text]


def test_query_reads_units_modes_and_cells_that_are_not_known() -> None:
    text = (
        "index, name, uuid, memory.total [MiB], memory.free [MiB], compute_cap, ecc.mode.current, mig.mode.current, "
        "pcie.link.gen.max, power.limit [W], driver_version\n"
        "0, Board A, GPU-1, 24564 MiB, 24000 MiB, 8.9, [N/A], [N/A], 4, 450.00 W, 570.10\n"
        "1, Board B, GPU-2, [N/A], [Unknown Error], [Not Supported], Enabled, Disabled, [N/A], [N/A], 570.10\n"
    )
    first, second = parse_query(text)
    assert (first.memory_total_bytes, first.memory_free_bytes) == (24564 * MIB, 24000 * MIB)
    assert (first.compute_capability, first.ecc_enabled, first.power_limit_watts) == ((8, 9), None, 450.0)
    assert (second.ecc_enabled, second.mig_enabled) == (True, False)
    assert second.memory_total_bytes is second.compute_capability is second.pcie_generation is None
    assert parse_query_column(text, "driver_version") == "570.10"
    assert parse_query_column(text, "vbios_version") is None


def test_query_without_header_needs_the_columns() -> None:
    text = "0, Board A, 32607\n1, Board A, 32607\n"
    boards = parse_query(text, ("index", "name", "memory.total"))
    assert [(board.index, board.memory_total_bytes) for board in boards] == [(0, 32607 * MIB), (1, 32607 * MIB)]
    with pytest.raises(UnreadableOutput, match="without a header"):
        parse_query(text)


def test_query_skips_warnings_before_the_header() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:5E:00.0\nindex, name\n0, Board A\n"
    assert [board.name for board in parse_query(text)] == ["Board A"]


@pytest.mark.parametrize("row", ["x, Board", "0, [N/A]", "Error, nothing here"])
def test_query_refuses_rows_of_rubbish(row: str) -> None:
    with pytest.raises(UnreadableOutput, match="without index and name"):
        parse_query(f"index, name\n{row}\n")


def test_the_column_that_an_old_driver_rejects_is_named() -> None:
    assert rejected_column('nvidia-smi fails: Field "compute_cap" is not a valid field to query.') == "compute_cap"
    assert rejected_column("nvidia-smi fails with status 9") is None


def test_screen_with_mig_devices() -> None:
    first, second = parse_screen(MIG_SCREEN)
    assert (first.mig_enabled, second.mig_enabled) == (True, False)
    assert (first.power_limit_watts, second.power_limit_watts) == (700, None)
    assert second.ecc_enabled is False
    assert second.memory_free_bytes == (81559 - 100) * MIB
    assert [(s.index, s.memory_total_bytes, s.memory_free_bytes, s.sm_count) for s in first.slices] == [
        (0, 20096 * MIB, 20077 * MIB, 28), (1, 9984 * MIB, 9974 * MIB, 14),
    ]  # fmt: skip
    assert parse_versions(MIG_SCREEN) == ("999.10.01", "19.1")


def test_list_names_the_slices_and_the_screen_measures_them() -> None:
    board = merge_boards(parse_list(MIG_LIST), parse_screen(MIG_SCREEN))[0]
    assert board.name == "NVIDIA H900", "the screen's shortened name must not win"
    assert [(s.profile, s.uuid, s.memory_total_bytes) for s in board.slices] == [
        ("2g.20gb", "MIG-bbbb0000", 20096 * MIB), ("1g.10gb+me", "MIG-bbbb0001", 9984 * MIB),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "mib"), [("1g.5gb", 4864), ("3g.40gb", 38912), ("1c.3g.20gb", 19456), ("1g.10gb+me", 9728), ("?", None)]
)
def test_memory_in_a_slice_name(profile: str, mib: int | None) -> None:
    assert slice_memory_bytes(profile) == (None if mib is None else mib * MIB)


@given(st.text(alphabet="GPU MIGDevice0123456789:(UUID)|/MiBW,.\n[N/A]OnOff-", max_size=300))
def test_no_text_breaks_the_parsers(text: str) -> None:
    parse_list(text)
    parse_screen(text)
    parse_versions(text)
    with contextlib.suppress(UnreadableOutput):
        parse_query(text, ("index", "name"))
