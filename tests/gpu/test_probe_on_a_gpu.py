"""On a real NVIDIA driver the three sources must tell the same machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adaptft.hardware import probe
from adaptft.hardware.boards import Reading
from adaptft.hardware.nvml import NvmlUnavailable, read_nvml
from adaptft.hardware.sources import smi_boards, smi_links
from adaptft.hardware.torch_devices import parse_torch

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def nvml() -> Reading:
    try:
        return read_nvml()
    except NvmlUnavailable as reason:
        pytest.skip(str(reason))


def test_nvml_and_nvidia_smi_agree(nvml: Reading) -> None:
    notes: list[str] = []
    smi = smi_boards(notes)
    assert notes == []
    assert smi is not None
    assert (smi.driver, smi.driver_cuda) == (nvml.driver, nvml.driver_cuda)
    for ours, theirs in zip(nvml.boards, smi.boards, strict=True):
        for field in (
            "index", "name", "uuid", "compute_capability", "memory_total_bytes", "ecc_enabled", "mig_enabled",
            "pci_bus_id", "pcie_generation", "pcie_width", "power_limit_watts",
        ):  # fmt: skip
            assert getattr(ours, field) == getattr(theirs, field), field
        assert ours.sm_count


def test_links_of_nvml_and_nvidia_smi_agree(nvml: Reading) -> None:
    if len(nvml.boards) < 2:
        pytest.skip("one GPU has no links")
    notes: list[str] = []
    assert smi_links(nvml.boards, notes) == nvml.links
    assert notes == []


@pytest.mark.parametrize("setting", [None, "0", "-1", "", "0,0", "9", "uuid"])
def test_the_probe_sees_the_gpus_that_torch_sees(
    setting: str | None, nvml: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", (nvml.boards[0].uuid or "")[:12] if setting == "uuid" else setting)
    told = subprocess.run(
        [sys.executable, "-m", "adaptft.hardware.torch_devices"],
        capture_output=True, text=True, check=True, env=os.environ, timeout=120,
    )  # fmt: skip
    torch_boards = parse_torch(told.stdout).boards
    gpus = probe().gpus
    assert [gpu.uuid for gpu in gpus] == [board.uuid for board in torch_boards]
    assert [gpu.sm_count for gpu in gpus] == [board.sm_count for board in torch_boards]
    assert [gpu.compute_capability for gpu in gpus] == [board.compute_capability for board in torch_boards]
