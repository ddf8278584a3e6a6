"""Recorded machines: those of tests/machines load, and files that cannot be trusted are refused in two lines."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptft.errors import MachineError
from adaptft.facts import Machine
from adaptft.hardware import read_machine
from adaptft.hardware.recorded import absurdities
from adaptft.records import dumps

MACHINES = Path(__file__).parents[1] / "machines"


def recorded() -> dict[str, Machine]:
    spec = importlib.util.spec_from_file_location("make_machines", MACHINES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    machines: dict[str, Machine] = module.RECORDED
    return machines


RECORDED = recorded()


def test_every_file_has_its_row_in_make_py() -> None:
    assert {path.stem for path in MACHINES.glob("*.json")} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_machine_loads_as_it_was_written(name: str) -> None:
    path = MACHINES / f"{name}.json"
    assert read_machine(path) == RECORDED[name]
    assert path.read_text(encoding="utf-8") == dumps(RECORDED[name])


# file -> GPUs, compute capability, GiB of a GPU at least and at most, widths of links
FACTS: dict[str, tuple[int, tuple[int, int], tuple[float, float], set[int | None]]] = {
    "t4": (1, (7, 5), (14.5, 15.1), set()),
    "v100": (1, (7, 0), (15.5, 16.1), set()),
    "a10": (1, (8, 6), (22, 23), set()),
    "4090": (1, (8, 9), (23.5, 24), set()),
    "4090x2": (2, (8, 9), (23.5, 24), {None}),
    "a100-40g": (1, (8, 0), (39, 40.1), set()),
    "a100x8-nvlink": (8, (8, 0), (79, 80.1), {12}),
    "l4x4-pcie": (4, (8, 9), (22, 23), {None}),
    "l40s": (1, (8, 9), (44, 46), set()),
    "h100x8": (8, (9, 0), (79, 80), {18}),
    "h200": (1, (9, 0), (139, 141), set()),
    "mig-3g.40gb": (1, (9, 0), (37, 40), set()),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_of_a_recorded_machine(name: str) -> None:
    count, capability, (least, most), widths = FACTS[name]
    machine = read_machine(MACHINES / f"{name}.json")
    assert len(machine.gpus) == count
    assert {gpu.compute_capability for gpu in machine.gpus} == {capability}
    assert all(least <= gpu.memory_total_bytes / 1024**3 <= most for gpu in machine.gpus)
    assert {link.nvlink_width for link in machine.links} == widths
    assert len(machine.links) == count * (count - 1) // 2


def test_the_slice_is_not_the_board_and_the_cpu_machine_has_no_gpu() -> None:
    part = read_machine(MACHINES / "mig-3g.40gb.json").gpus[0]
    assert part.mig is not None
    assert (part.mig.profile, part.mig.parent) == ("3g.40gb", "NVIDIA H100 80GB HBM3")
    assert read_machine(MACHINES / "cpu.json").gpus == ()


def change(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(data: dict[str, Any]) -> None:
        place: Any = data
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return apply


# change to 4090x2.json -> what the first line says
FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no CPU": (lambda data: data.pop("cpu"), "missing required field `cpu`"),
    "text for a number": (change("gpus", 0, "memory_total_bytes", to="much"), "memory_total_bytes"),
    "unknown key": (change("gpus", 1, "tensor_cores", to=4), "does not know gpus[1].tensor_cores"),
    "unknown key at the top": (change("format", to=2), "does not know format"),
    "unknown link code": (change("links", 0, "path", to="WARP"), "WARP"),
    "no memory": (change("gpus", 0, "memory_total_bytes", to=0), "GPU 0 has 0 bytes of memory"),
    "negative memory": (change("gpus", 0, "memory_total_bytes", to=-1), "GPU 0 has -1 bytes of memory"),
    "an exabyte": (change("gpus", 0, "memory_total_bytes", to=2**60), "bytes of memory"),
    "more free than there is": (change("gpus", 1, "memory_free_bytes", to=2**36), "bytes free"),
    "compute capability 0.0": (change("gpus", 0, "compute_capability", to=[0, 0]), "compute capability 0.0"),
    "compute capability 8.60": (change("gpus", 0, "compute_capability", to=[8, 60]), "compute capability 8.60"),
    "no SM": (change("gpus", 0, "sm_count", to=0), "sm_count 0"),
    "power below zero": (change("gpus", 0, "power_limit_watts", to=-3.0), "power_limit_watts -3.0"),
    "power not a number": (change("gpus", 0, "power_limit_watts", to=float("nan")), "power_limit_watts nan"),
    "the same index twice": (change("gpus", 1, "index", to=0), "GPU number 1 has the index 0"),
    "link to nowhere": (change("links", 0, "b", to=5), "joins the GPUs 0 and 5 of 2"),
    "link to itself": (change("links", 0, "a", to=1), "joins the GPUs 1 and 1"),
    "NVLink without width": (change("links", 0, "path", to="NV"), "NV with None NVLinks"),
    "PCIe with a width": (change("links", 0, "nvlink_width", to=4), "PHB with 4 NVLinks"),
    "the same link twice": (lambda data: data["links"].append(data["links"][0]), "two links join the same pair"),
    "no core": (change("cpu", "usable_cores", to=0), "0.0 of 32 CPU cores usable"),
    "more cores than there are": (change("cpu", "usable_cores", to=99), "99.0 of 32 CPU cores usable"),
    "no physical core": (change("cpu", "physical_cores", to=0), "0 physical CPU cores"),
    "no host memory": (change("memory", "total_bytes", to=0), "host memory of 0 bytes"),
    "limit of nothing": (change("memory", "limit_bytes", to=0), "a memory limit of 0 bytes"),
    "a disk with more free than there is": (change("disk", "free_bytes", to=2**62), "a disk of"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_cannot_be_trusted(name: str, tmp_path: Path) -> None:
    fault, message = FAULTS[name]
    data = json.loads((MACHINES / "4090x2.json").read_text(encoding="utf-8"))
    fault(data)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(data))
    with pytest.raises(MachineError) as refused:
        read_machine(path)
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert message in lines[0]
    assert "adaptft probe --json > machine.json" in lines[1]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"gpus": 3}', b"GPU 0: NVIDIA L4"])
def test_a_file_of_another_form(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(text)
    with pytest.raises(MachineError) as refused:
        read_machine(path)
    assert len(str(refused.value).splitlines()) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"nowhere\.json"):
        read_machine(tmp_path / "nowhere.json")


def test_no_recorded_machine_is_absurd() -> None:
    assert [list(absurdities(machine)) for machine in RECORDED.values()] == [[]] * len(RECORDED)
