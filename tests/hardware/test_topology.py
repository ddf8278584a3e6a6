"""Topology, peer access and NVLink text in forms that real drivers print, in our own words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptft.hardware.boards import Board
from adaptft.hardware.sources import board_links
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.topology import PathCode, nvlink_generation, parse_nvlink_speeds, parse_peers, parse_topology

TABS = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV6\t0-7\t0\t\tN/A\nGPU1\tNV6\t X \t8-15\t1\t\tN/A\n"
)
FORMS = {
    "tabs, two before the last column": TABS,
    "blanks, uneven in the header": (
        "        GPU0    GPU1  CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV6     0-7     0               N/A\nGPU1    NV6      X      8-15    1               N/A\n"
    ),
    "underlined header": TABS.replace("GPU0\tGPU1\tCPU", "\x1b[4mGPU0\tGPU1\tCPU").replace("ID\n", "ID\x1b[0m\n"),
    "carriage returns": TABS.replace("\n", "\r\n"),
    "a blank before and a tab after each line": "".join(f" {line}\t\n" for line in TABS.splitlines()),
    "self without blanks": TABS.replace(" X ", "X"),
    "no GPU NUMA ID column": TABS.replace("\tGPU NUMA ID", "").replace("\t\tN/A", ""),
    "second row cut off": "\n".join(TABS.splitlines()[:2]) + "\nGPU1\tNV6",
    "a warning first": "WARNING: something about persistence\n" + TABS,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_link(form: str) -> None:
    topology = parse_topology(FORMS[form])
    assert topology.gpus == (0, 1)
    assert topology.gpu_paths == {(0, 1): PathCode("NV", 6)}
    assert topology.numa_nodes[0] == 0


# affinity cells of GPU0 -> its NUMA node
NUMA_CELLS = {
    "CPU list missing, tabs": ("\t\t1\t\tN/A", 1),
    "NUMA not known": ("\t0-3\tN/A\t\tN/A", None),
    "NUMA a range": ("\t0-3\t0-1\t\tN/A", None),
    "all cells missing": ("", None),
    "CPU list missing, blanks": ("      1      N/A", 1),
    "one CPU": ("\t5\t0\t\tN/A", 0),
}


@pytest.mark.parametrize("name", NUMA_CELLS)
def test_numa_node(name: str) -> None:
    cells, node = NUMA_CELLS[name]
    text = f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X {cells}\n"
    assert parse_topology(text).numa_nodes.get(0) == node


def test_network_cards_have_rows_without_affinity_and_names_in_the_legend() -> None:
    text = (
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\tPXB\t0-7\t0\nGPU1\tPIX\t X \tSYS\t0-7\t0\n"
        "NIC0\tPXB\tSYS\t X\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_9\n"
    )
    topology = parse_topology(text)
    assert topology.gpus == (0, 1)
    assert topology.nics == ("mlx5_9",)
    assert topology.nic_paths == {(0, "mlx5_9"): PathCode("PXB"), (1, "mlx5_9"): PathCode("SYS")}


def test_a_missing_row_is_filled_from_the_other_half() -> None:
    topology = parse_topology("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPHB\tSYS\nGPU1\tPHB\tX\tPIX\n")
    assert set(topology.gpu_paths) == {(0, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize(
    "text", ["", "No devices were found", "GPU 0: NVIDIA L4", "\tGPU0\tGPU1\nGPU0\tX\tMX\nGPU1\tMX\tX\n"]
)
def test_what_is_not_a_topology_is_refused(text: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse_topology(text)


def test_peer_access_knows_every_refusal() -> None:
    codes = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False, "U": None}
    for code, answer in codes.items():
        text = f" \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\t{code}\t\n GPU1\t{code}\tX\t\n\nLegend:\n"
        assert parse_peers(text) == {(0, 1): answer}


def test_nvlink_speeds_skip_inactive_links() -> None:
    text = "GPU 0: NVIDIA X (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\nGPU 1: X\n\t all inActive\n"
    assert parse_nvlink_speeds(text) == {0: (26.562,), 1: ()}
    with pytest.raises(UnreadableOutput):
        parse_nvlink_speeds("NVLink is not supported")


# compute capability, GB/s -> generation
GENERATIONS = [
    ((6, 0), None, 1), ((7, 0), 25.781, 2), ((8, 0), 25.0, 3), ((8, 6), 14.062, 3), ((9, 0), 26.562, 4),
    ((10, 0), 53.125, 5), (None, 25.781, 2), (None, 25.0, 3), (None, 26.562, 4), (None, 14.062, 3), (None, 53.125, 5),
    (None, 19.531, 1), (None, 77.0, None), (None, None, None), ((9, 0), 25.0, 4),
]  # fmt: skip


@pytest.mark.parametrize(("capability", "speed", "generation"), GENERATIONS)
def test_nvlink_generation(capability: tuple[int, int] | None, speed: float | None, generation: int | None) -> None:
    assert nvlink_generation(capability, speed) == generation


def test_links_put_the_three_texts_together() -> None:
    boards = (Board(index=0, name="A"), Board(index=1, name="A"))
    link = board_links(parse_topology(TABS), {(0, 1): True}, {0: (25.781,) * 6}, boards)[0]
    assert (link.code, link.generation, link.peer_access) == (PathCode("NV", 6), 2, True)


@given(st.text(alphabet="GPUNIC0123 XNVSYSOK\tN/A\n-,\x1b[4m", max_size=300))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_topology, parse_peers, parse_nvlink_speeds):
        with contextlib.suppress(UnreadableOutput):
            parse(text)
