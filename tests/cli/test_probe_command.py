"""``adaptft probe``: the screen says what a person asks of a machine, --json what a plan needs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from adaptft.cli.machine_screen import links_sentence
from adaptft.cli.probe import command, render_machine
from adaptft.facts import Link, Machine, UnsupportedAccelerator
from adaptft.hardware import read_machine

MACHINES = Path(__file__).parents[1] / "machines"


def screen(machine: Machine, width: int = 100) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(render_machine(machine))
    return capture.get()


# recorded machine -> what must stand on its screen
SCREENS: dict[str, list[str]] = {
    "t4": ["Tesla T4", "15.0 GiB memory", "40 SMs", "Turing 7.5: FP16 INT8, no BF16 TF32 FP8", "70 W", "ECC on"],
    "4090": ["NVIDIA GeForce RTX 4090", "Ada 8.9: BF16 TF32 FP16 FP8 INT8", "PCIe 4 x16", "native BF16"],
    "a100x8-nvlink": [
        "8 x NVIDIA A100-SXM4-80GB", "0-7", "Ampere 8.0: BF16 TF32 FP16 INT8, no FP8",
        "8 GPUs, NVLink 3 x12, all to all, peer access", "8 NUMA nodes", "NUMA 3: GPU 0-1",
    ],
    "l4x4-pcie": ["4 x NVIDIA L4", "4 GPUs, PCIe (PHB), all to all, no peer access"],
    "4090x2": ["2 GPUs, PCIe (PHB), no peer access"],
    "mig-3g.40gb": ["MIG slice 3g.40gb", "39.5 GiB memory", "60 SMs"],
    "cpu": ["none that adaptft can use", "nvidia-smi is not installed.", "torch", "without CUDA"],
}  # fmt: skip


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str) -> None:
    text = screen(read_machine(MACHINES / f"{name}.json"))
    assert [part for part in SCREENS[name] if part not in text] == []


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_every_screen_fits_80_columns(path: Path) -> None:
    assert max(map(len, screen(read_machine(path), width=80).splitlines())) <= 80


def test_uneven_links_are_a_table() -> None:
    machine = read_machine(MACHINES / "l4x4-pcie.json")
    bridged = {(0, 1), (2, 3)}
    links = tuple(
        Link(a=a, b=b, path="NV", nvlink_width=4, nvlink_generation=3, peer_access=True)
        if (a, b) in bridged
        else Link(a=a, b=b, path="SYS", peer_access=False)
        for a, b in combinations(range(4), 2)
    )
    text = screen(replace(machine, links=links))
    assert "4 GPUs, NVLink 3 x4 and PCIe (SYS), see the table, no peer access between 4 pairs" in text
    rows = [line.split() for line in text.splitlines() if "NV4" in line]
    assert ["0", "-", "NV4", "SYS", "SYS"] in [row[1:-1] for row in rows]


def test_no_links_no_sentence() -> None:
    assert links_sentence((), 1) is None


def test_an_unknown_compute_capability_is_said_and_not_guessed() -> None:
    machine = read_machine(MACHINES / "t4.json")
    text = screen(replace(machine, gpus=(replace(machine.gpus[0], compute_capability=None),)))
    assert "compute capability not known" in text


def test_other_vendors_and_notes_stand_on_the_screen_as_they_are() -> None:
    machine = read_machine(MACHINES / "cpu.json")
    amd = UnsupportedAccelerator(vendor="amd", name="AMD [0x74a2]", count=8)
    text = screen(replace(machine, unsupported=(amd,), notes=("fails: [/bold] [Errno 2]",)))
    assert "8 x AMD [0x74a2]: not supported yet" in text
    assert "fails: [/bold] [Errno 2]" in text


def test_json_is_what_machine_reads_back(tmp_path: Path) -> None:
    printed = CliRunner().invoke(command, ["--json"])
    assert printed.exit_code == 0
    path = tmp_path / "machine.json"
    path.write_text(printed.output)
    shown = CliRunner().invoke(command, ["--machine", str(path), "--json"])
    assert json.loads(shown.output) == json.loads(printed.output)


def test_a_broken_machine_file_is_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text("{}")
    done = run_cli("probe", "--machine", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.strip().splitlines()) == 2


def test_help_shows_an_example_and_loads_no_heavy_module() -> None:
    code = "import sys; from adaptft.cli import main\ntry: main(['probe', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(','.join({'torch', 'rich', 'adaptft.hardware'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.strip() == ""
    assert "adaptft probe --json > machine.json" in done.stdout


def run_cli(*words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from adaptft.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=60)
