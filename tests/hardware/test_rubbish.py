"""Parsers stay quick on a hundred thousand characters of rubbish made to hurt them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from adaptft.hardware.cpu import parse_cpuinfo, parse_lscpu
from adaptft.hardware.foreign import parse_foreign
from adaptft.hardware.smi import parse_list, parse_query, parse_screen, parse_versions
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.topology import parse_nvlink_speeds, parse_peers, parse_topology

PARSERS: tuple[Callable[[str], Any], ...] = (
    parse_list, parse_query, parse_screen, parse_versions, parse_topology, parse_peers, parse_nvlink_speeds,
    parse_lscpu, parse_cpuinfo, parse_foreign,
)  # fmt: skip
SIZE = 100_000
RUBBISH = {
    "blanks": " " * SIZE,
    "long lines of blanks": (" " * 8000 + "x\n") * (SIZE // 8000),
    "digits": "1" * SIZE,
    "half a screen row": "|  0  x " * (SIZE // 8),
    "half of its second row": "| /1W | 1MiB / " * (SIZE // 15),
    "GPUs on one line": "GPU 0: x " * (SIZE // 9),
    "headers without rows": "GPU0 GPU1\n" * (SIZE // 10),
    "AMD rows": "ROCm System Management\n" + ("0 0x1234 " + " " * 500 + "\n") * (SIZE // 500),
    "Ascend rows": "npu-smi\n" + "| 1 a1 | OK |\n|\n||\n" * (SIZE // 20),
    "MetaX rows": "MetaX System Management\n" + "/1 " * (SIZE // 3),
}


@pytest.mark.parametrize("name", RUBBISH)
def test_rubbish_costs_no_time(name: str) -> None:
    start = time.monotonic()
    for parse in PARSERS:
        with contextlib.suppress(UnreadableOutput):
            parse(RUBBISH[name])
    assert time.monotonic() - start < 5
