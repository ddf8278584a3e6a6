"""CPU, container limits, memory and disk; file trees are made in a temporary folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptft.hardware.cgroups import Limits, parse_cpu_max, parse_groups, parse_memory_limit, read_limits
from adaptft.hardware.cpu import parse_cpuinfo, parse_lscpu
from adaptft.hardware.host import container_memory, read_disk, usable_cores
from adaptft.hardware.software import parse_torch_cuda, parse_torch_version_file
from adaptft.hardware.sources import has_device_nodes, read_numa_node
from adaptft.hardware.text import UnreadableOutput

GIB = 1024**3


def test_lscpu_of_a_part() -> None:
    cpu = parse_lscpu("CPU(s):   6\nModel name:  Some   CPU\nFlags: fpu avx2 amx_bf16 made_up\n")
    assert (cpu.logical_cores, cpu.physical_cores, cpu.model_name) == (6, None, "Some CPU")
    assert cpu.flags == ("avx2", "amx_bf16")


def test_flags_of_arm_are_never_those_of_x86() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd bf16 sve avx2\nCPU architecture: 8\n\nprocessor\t: 1\nFeatures\t: fp\n"
    cpu = parse_cpuinfo(text)
    assert (cpu.architecture, cpu.logical_cores, cpu.flags) == ("aarch64", 2, ("asimd", "bf16", "sve"))


def test_cpuinfo_counts_a_core_once_for_both_threads() -> None:
    block = "processor\t: {}\nmodel name\t: Some CPU\nphysical id\t: {}\ncore id\t\t: {}\nflags\t\t: avx\n\n"
    text = "".join(block.format(n, n // 4, n % 2) for n in range(8))
    cpu = parse_cpuinfo(text)
    assert (cpu.logical_cores, cpu.physical_cores) == (8, 4)


@pytest.mark.parametrize("text", ["", "nothing", "Segmentation fault"])
def test_what_is_no_cpu_is_refused(text: str) -> None:
    for parse in (parse_lscpu, parse_cpuinfo):
        with pytest.raises(UnreadableOutput):
            parse(text)


@given(st.text(alphabet="CPU(s):processor\t :0123456789flags avx\n", max_size=200))
def test_no_text_breaks_the_cpu_parsers(text: str) -> None:
    for parse in (parse_lscpu, parse_cpuinfo):
        with contextlib.suppress(UnreadableOutput):
            parse(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712", None), ("9223372036854710272\n", None), ("1073741824\n", GIB), ("0", 0)],
)
def test_memory_limit(text: str, limit: int | None) -> None:
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("50000 100000", 0.5), ("-1 100000", None), ("250000 100000", 2.5), ("300000", 3)],
)
def test_cpu_limit(text: str, cores: float | None) -> None:
    assert parse_cpu_max(text) == cores


@pytest.mark.parametrize("text", ["", "lots", "-5", "1 0", "1 2 3"])
def test_limits_of_rubbish_are_refused(text: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse_cpu_max(text)
    if text != "1 0":
        with pytest.raises(UnreadableOutput):
            parse_memory_limit(text)


def test_groups_of_both_versions() -> None:
    assert parse_groups("5:cpu,cpuacct:/a\n4:memory:/b/c\n1:name=systemd:/\n0::/d\nrubbish\n") == {
        "cpu": "/a", "cpuacct": "/a", "memory": "/b/c", "name=systemd": "/", "": "/d",
    }  # fmt: skip


V2 = "0::/box/job\n"
V1 = "3:memory:/box\n2:cpu,cpuacct:/box\n"
# files under the root -> limits
TREES: dict[str, tuple[dict[str, str], Limits]] = {
    "no cgroup at all": ({}, Limits()),
    "version 2, own group": (
        {
            "proc/self/cgroup": V2, "sys/fs/cgroup/box/job/memory.max": f"{8 * GIB}",
            "sys/fs/cgroup/box/job/memory.current": f"{3 * GIB}",
            "sys/fs/cgroup/box/job/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/box/job/cpu.max": "150000 100000",
        },
        Limits(memory_bytes=8 * GIB, used_bytes=2 * GIB, cpus=1.5),
    ),
    "version 2, the parent is tighter": (
        {
            "proc/self/cgroup": V2, "sys/fs/cgroup/box/job/memory.max": "max", "sys/fs/cgroup/box/memory.max": f"{GIB}",
            "sys/fs/cgroup/box/job/cpu.max": "400000 100000", "sys/fs/cgroup/box/cpu.max": "200000 100000",
        },
        Limits(memory_bytes=GIB, cpus=2.0),
    ),
    "version 2, the container sees its group at the top": (
        {
            "proc/self/cgroup": "0::/host/path\n",
            "sys/fs/cgroup/memory.max": f"{GIB}",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
        Limits(memory_bytes=GIB),
    ),
    "version 1": (
        {
            "proc/self/cgroup": V1, "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{4 * GIB}",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        },
        Limits(memory_bytes=4 * GIB, used_bytes=GIB, cpus=0.5),
    ),
    "version 1 without a quota": (
        {
            "proc/self/cgroup": V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        Limits(),
    ),
}  # fmt: skip


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("name", TREES)
def test_limits_of_a_container(name: str, tmp_path: Path) -> None:
    files, limits = TREES[name]
    notes: list[str] = []
    assert read_limits(plant(tmp_path, files), notes) == limits
    assert notes == []


def test_a_limit_of_rubbish_is_noted_and_passed_over(tmp_path: Path) -> None:
    notes: list[str] = []
    files = {"sys/fs/cgroup/memory.max": "many", "sys/fs/cgroup/cpu.max": "200000 100000"}
    assert read_limits(plant(tmp_path, files), notes) == Limits(cpus=2.0)
    assert notes == ["memory limit of the cgroup reads 'many': taken as no limit."]


@pytest.mark.parametrize(("quota", "usable"), [(None, 8.0), (0.5, 0.5), (6.0, 6.0), (64.0, 8.0)])
def test_usable_cores_are_the_least_of_all(quota: float | None, usable: float) -> None:
    assert usable_cores(16, 8, quota) == usable


def test_memory_left_in_a_container() -> None:
    notes: list[str] = []
    memory = container_memory(64 * GIB, 60 * GIB, Limits(memory_bytes=16 * GIB, used_bytes=6 * GIB), notes)
    assert (memory.total_bytes, memory.available_bytes, memory.limit_bytes) == (64 * GIB, 10 * GIB, 16 * GIB)
    assert notes == []


def test_a_limit_above_what_the_kernel_shows_is_noted() -> None:
    notes: list[str] = []
    memory = container_memory(31 * GIB, 30 * GIB, Limits(memory_bytes=256 * GIB), notes)
    assert (memory.available_bytes, memory.limit_bytes) == (30 * GIB, 256 * GIB)
    assert "may use 256.0 GiB where the kernel shows 31.0 GiB" in notes[0]


def test_the_disk_of_a_folder_that_does_not_exist_is_its_parents(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "not" / "yet", [])
    assert disk is not None
    assert disk.path == str(tmp_path)
    assert 0 < disk.free_bytes <= disk.total_bytes


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "13.0"),
        ("cuda: Optional[str] = None\n", None), ("cuda = '12.8'\n", "12.8"), ("", None),
    ],
)  # fmt: skip
def test_cuda_of_an_installed_torch(text: str, cuda: str | None) -> None:
    assert parse_torch_version_file(text) == cuda


@pytest.mark.parametrize(
    ("version", "cuda"), [("2.11.0+cu130", "13.0"), ("2.0.1+cu118", "11.8"), ("2.13.0+cpu", None), ("2.13.0", None)]
)
def test_cuda_in_a_torch_version(version: str, cuda: str | None) -> None:
    assert parse_torch_cuda(version) == cuda


@pytest.mark.parametrize(("content", "node"), [("1\n", 1), ("-1\n", None), ("rubbish", None)])
def test_numa_node_of_a_board(content: str, node: int | None, tmp_path: Path) -> None:
    plant(tmp_path, {"sys/bus/pci/devices/0000:1b:00.0/numa_node": content})
    assert read_numa_node(tmp_path, "00000000:1B:00.0") == node
    assert read_numa_node(tmp_path, "00000000:2B:00.0") is None
    assert read_numa_node(tmp_path, None) is None


@pytest.mark.parametrize(
    ("name", "there"), [("nvidia0", True), ("nvidiactl", True), ("dxg", True), ("nvidia-caps", False)]
)
def test_device_nodes(name: str, there: bool, tmp_path: Path) -> None:
    plant(tmp_path, {f"dev/{name}": ""})
    assert has_device_nodes(tmp_path) == there
