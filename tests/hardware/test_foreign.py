"""Other vendors' tools, in our own words: recognised, counted, refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptft.hardware.foreign import Foreign, parse_foreign

AMD_NEW = (
    "===== ROCm System Management Interface =====\nWARNING: a card is asleep\n==== Concise Info ====\n"
    "Device  Node  IDs              Temp\n              (DID,     GUID)\n====\n"
    "0       1     0x7999,   100   40.0C  0%\n1       2     0x7999,   200   41.0C  0%\n====\n"
)
AMD_NAMED = (
    "===== ROCm System Management Interface =====\nDevice  [Model : Revision]    Temp\n        Name (20 chars)\n====\n"
    "0       [0x7998 : 0x00]       45.0C   0%\n        AMD Made Up 1\n"
    "1       [0x7998 : 0x00]       45.0C   0%\n        AMD Made Up 1\n====\n"
)
AMD_TOPOLOGY = (
    "== ROCm System Management Interface ==\n"
    "== Hops between two GPUs ==\n       GPU0   GPU1\nGPU0   0      2\nGPU1   2      0\n"
    "== Link Type between two GPUs ==\n       GPU0   GPU1\nGPU0   0      PCIE\nGPU1   PCIE   0\n== Numa Nodes ==\n"
    "GPU[0]   : (Topology) Numa Node: 0\nGPU[0]   : (Topology) Numa Affinity: 0\nGPU[1]   : (Topology) Numa Node: 1\n"
)
ASCEND = (
    "| npu-smi 99.9     Version: 99.9 |\n| NPU   Name  | Health | Power(W) |\n| Chip   | Bus-Id  | HBM-Usage(MB) |\n"
    "| 0     777B  | OK            | 90.0   40   0 / 0 |\n| 0      | 0000:C1:00.0  | 0   0 / 0   10 / 32768 |\n"
    "| 1     777B  | Warning       | 90.0   40   0 / 0 |\n| 0      | 0000:C2:00.0  | 0   0 / 0   10 / 32768 |\n"
)
METAX = (
    "==== MetaX System Management Interface Log ====\nAttached GPUs     : 2\n"
    "| 0       MetaX C999      | 0000:08:00.0 | 0% |\n| 36C     67W / 350W | 800/65536 MiB | |\n"
)
TEXTS = {
    "rocm-smi with ids": (AMD_NEW, Foreign(vendor="amd", name="AMD GPU 0x7999", count=2)),
    "rocm-smi with names": (AMD_NAMED, Foreign(vendor="amd", name="AMD Made Up 1", count=2)),
    "rocm-smi --showtopo": (
        AMD_TOPOLOGY,
        Foreign(vendor="amd", name="AMD GPU", count=2, links={"PCIE": 1}, hops=2, numa_nodes={0: 0, 1: 1}),
    ),
    "npu-smi": (ASCEND, Foreign(vendor="ascend", name="Ascend 777B", count=2, memory_bytes=32768 * 1024**2)),
    "mx-smi": (METAX, Foreign(vendor="metax", name="MetaX C999", count=2, memory_bytes=65536 * 1024**2)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_vendor(name: str) -> None:
    text, found = TEXTS[name]
    assert parse_foreign(text) == found


def test_the_sentence_says_what_was_found_and_that_it_is_not_supported() -> None:
    found = parse_foreign(AMD_TOPOLOGY + "GPU[0]    : VRAM Total Memory (B): 68719476736\n")
    assert found is not None
    assert found.sentence() == (
        "2 x AMD GPU (64.0 GiB each, PCIE between 1 pairs) found: "
        "not supported yet, adaptft runs on NVIDIA GPUs and on CPUs."
    )


@pytest.mark.parametrize(
    "text", ["", "rubbish", "GPU 0: NVIDIA L4 (UUID: GPU-1)", "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNV4\tX\n"]
)
def test_all_other_text_is_no_vendor(text: str) -> None:
    assert parse_foreign(text) is None


@given(st.text(alphabet="|01 a1OK\n/GPU[]:x(", max_size=200) | st.text(max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    for banner in ("ROCm System Management\n", "npu-smi\n", "MetaX System Management\n"):
        found = parse_foreign(banner + text)
        assert found is not None
        assert found.sentence()
