"""The whole probe, on this machine and with made-up tools on the PATH."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from adaptft.hardware import probe, read_machine
from adaptft.hardware.nvml import NvmlUnavailable, read_nvml
from adaptft.records import dumps

MIB = 1024**2

SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu=*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2 ;;
  --query-gpu=*)
    echo 'index, name, uuid, memory.total [MiB], memory.free [MiB], driver_version'
    echo '0, Made-up V, GPU-a0, 16384 MiB, 16000 MiB, 999.1'
    echo '1, Made-up V, GPU-b1, 16384 MiB, 15000 MiB, 999.1' ;;
  -L) echo 'GPU 0: Made-up V (UUID: GPU-a0)'; echo 'GPU 1: Made-up V (UUID: GPU-b1)' ;;
  topo) case "$2" in
    -m) printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tNV2\\t0-3\\nGPU1\\tNV2\\t X \\t0-3\\n' ;;
    *) printf ' \\tGPU0\\tGPU1\\n GPU0\\tX\\tOK\\n GPU1\\tOK\\tX\\n' ;; esac ;;
  nvlink) printf 'GPU 0: Made-up V\\n\\t Link 0: 25.781 GB/s\\nGPU 1: Made-up V\\n\\t Link 0: 25.781 GB/s\\n' ;;
  *) echo '| NVIDIA-SMI 999.1    Driver Version: 999.1    CUDA Version: 19.9 |' ;;
esac
"""


def nvml_works() -> bool:
    try:
        read_nvml()
    except NvmlUnavailable:
        return False
    return True


without_driver = pytest.mark.skipif(nvml_works(), reason="this machine has a real NVIDIA driver, which comes first")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stands before all others on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def install(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(stat.S_IRWXU)


def test_this_machine_can_be_probed_and_read_back(tmp_path: Path) -> None:
    machine = probe(tmp_path)
    assert machine.cpu.logical_cores >= machine.cpu.usable_cores > 0
    assert machine.memory.total_bytes > machine.memory.available_bytes > 0
    assert machine.disk is not None
    assert machine.disk.path == str(tmp_path)
    assert "torch" in machine.software.packages
    file = tmp_path / "machine.json"
    file.write_text(dumps(machine))
    assert read_machine(file) == machine


@without_driver
def test_an_old_nvidia_smi_without_nvml_is_enough(tools: Path) -> None:
    install(tools, "nvidia-smi", SMI)
    machine = probe()
    assert [(gpu.name, gpu.memory_free_bytes // MIB) for gpu in machine.gpus] == [
        ("Made-up V", 16000),
        ("Made-up V", 15000),
    ]
    assert machine.gpus[0].compute_capability is None
    assert (machine.software.nvidia_driver, machine.software.driver_cuda) == ("999.1", "19.9")
    link = machine.links[0]
    assert (link.path, link.nvlink_width, link.nvlink_generation, link.peer_access) == ("NV", 2, 2, True)


@without_driver
def test_cuda_visible_devices_is_obeyed(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tools, "nvidia-smi", SMI)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    machine = probe()
    assert [(gpu.index, gpu.uuid) for gpu in machine.gpus] == [(0, "GPU-b1")]
    assert machine.links == ()
    assert "CUDA_VISIBLE_DEVICES=GPU-b leaves 1 of 2 GPUs." in machine.notes


# what nvidia-smi does -> a note that must appear
BROKEN = {
    "echo NVIDIA-SMI has failed; exit 9": "fails with status 9: NVIDIA-SMI has failed",
    "echo rubbish": "csv of nvidia-smi without a header",
    "head -c 2000 /dev/urandom": "nvidia-smi",
    "exit 0": "csv of nvidia-smi without a header",
}


@without_driver
@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_nvidia_smi_is_a_note(body: str, tools: Path) -> None:
    install(tools, "nvidia-smi", f"#!/bin/sh\n{body}\n")
    machine = probe()
    assert machine.gpus == ()
    assert any(BROKEN[body] in note for note in machine.notes)


@without_driver
def test_a_broken_topology_leaves_the_gpus(tools: Path) -> None:
    install(tools, "nvidia-smi", SMI.replace("  topo)", "  topo) echo '????' ;;\n  unused)"))
    machine = probe()
    assert len(machine.gpus) == 2
    assert machine.links == ()
    assert "not a topology of nvidia-smi." in machine.notes


def test_an_amd_machine_is_told_plainly(tools: Path) -> None:
    text = "== ROCm System Management Interface ==\\n0       [0x7998 : 0x00]   45.0C\\n        AMD Made Up 1\\n"
    install(tools, "rocm-smi", f"#!/bin/sh\nprintf '{text}'\n")
    machine = probe()
    assert [(u.vendor, u.name, u.count) for u in machine.unsupported] == [("amd", "AMD Made Up 1", 1)]
    assert any(note.startswith("1 x AMD Made Up 1 found: not supported yet") for note in machine.notes)


def test_broken_tools_of_the_host_are_notes(tools: Path) -> None:
    install(tools, "lscpu", "#!/bin/sh\necho rubbish\n")
    install(tools, "npu-smi", "#!/bin/sh\nexit 3\n")
    machine = probe()
    assert machine.cpu.logical_cores >= 1
    assert "The CPU is read from another source: not the output of lscpu." in machine.notes
    assert "npu-smi is installed and lists no device." in machine.notes


def test_probing_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from adaptft.hardware import probe; probe();"
        "sys.exit(','.join({'torch', 'transformers', 'datasets', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == "\n" or done.stderr == ""
