"""Real outputs of 36 machines against what a correct parser must conclude.

The texts are other people's and stay outside the repository: ``../shared/machines`` beside it, or ADAPTFT_SHARED.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from adaptft.facts import HostMemory
from adaptft.hardware.boards import Reading
from adaptft.hardware.cgroups import parse_cpu_max, parse_memory_limit
from adaptft.hardware.cpu import CpuText, parse_cpuinfo, parse_lscpu
from adaptft.hardware.foreign import parse_foreign
from adaptft.hardware.gpus import Gpus, choose_gpus
from adaptft.hardware.matrix import parse_matrices
from adaptft.hardware.smi import parse_list, parse_query, parse_query_column, parse_screen, parse_versions
from adaptft.hardware.software import parse_torch_cuda
from adaptft.hardware.text import UnreadableOutput
from adaptft.hardware.topology import Topology, nvlink_generation, parse_nvlink_speeds, parse_peers, parse_topology

SHARED = Path(os.environ.get("ADAPTFT_SHARED", Path(__file__).parents[2].parent / "shared"))
MACHINES = SHARED / "machines"
pytestmark = pytest.mark.skipif(not MACHINES.is_dir(), reason=f"no folder of real outputs at {MACHINES}")

MIB, GIB = 1024**2, 1024**3
ALL_28 = tuple(combinations(range(8), 2))
PAIRS_OF_8 = [(0, 1), (2, 3), (4, 5), (6, 7)]


def text_of(name: str) -> str:
    return (MACHINES / name).read_text(encoding="utf-8")


def topology(name: str) -> Topology:
    return parse_topology(text_of(f"{name}.topo.txt"))


def codes(machine: Topology) -> dict[str, int]:
    """``{"NV12": 6}``: pairs of GPUs by link."""
    return dict(Counter(f"{code.path}{code.width or ''}" for code in machine.gpu_paths.values()))


def pairs(machine: Topology, name: str) -> list[tuple[int, int]]:
    return sorted(pair for pair, code in machine.gpu_paths.items() if f"{code.path}{code.width or ''}" == name)


def numa(machine: Topology) -> list[int | None]:
    return [machine.numa_nodes.get(gpu) for gpu in machine.gpus]


# file -> number of GPUs, number of network cards, links between GPUs, NUMA node of each GPU
TOPOLOGIES: dict[str, tuple[int, int, dict[str, int], list[int | None]]] = {
    "v100-sxm2-32g-x8": (8, 2, {"NV1": 8, "NV2": 8, "SYS": 12}, [0, 0, 0, 0, 1, 1, 1, 1]),
    "a100-sxm4-80g-x4": (4, 1, {"NV12": 6}, [1, 1, 1, 1]),
    "dgx-a100-x8": (8, 12, {"NV12": 28}, [3, 3, 1, 1, 7, 7, 5, 5]),
    "h100-sxm5-80g-x8": (8, 12, {"NV18": 28}, [0, 0, 0, 0, 1, 1, 1, 1]),
    "a100-pcie-40g-x2": (2, 0, {"NODE": 1}, [1, 1]),
    "a100-pcie-80g-bridged-x4": (4, 0, {"NV12": 2, "SYS": 4}, [0, 0, 1, 1]),
    "a800-sxm4-80g-x8": (8, 8, {"NV8": 28}, [0, 0, 0, 0, 1, 1, 1, 1]),
    "rtx3090-nvlink-x2": (2, 0, {"NV4": 1}, [0, 0]),
    "a6000-pair-plus-one": (3, 0, {"NV4": 1, "NODE": 2}, [0, 0, 0]),
    "l40s-x4": (4, 0, {"PHB": 2, "SYS": 4}, [0, 0, 1, 1]),
    "v100-pcie-32g-x4": (4, 0, {"PIX": 2, "PHB": 4}, [0, 0, 0, 0]),
    "rtx2080ti-nvlink-x2": (2, 0, {"NV2": 1}, [0, 0]),
    "pcie-x8-p2p": (8, 0, {"PIX": 4, "NODE": 8, "SYS": 16}, [0, 0, 0, 0, 1, 1, 1, 1]),
    "pcie-x6": (6, 0, {"PIX": 3, "NODE": 4, "SYS": 8}, [0, 0, 0, 0, 1, 1]),
    "titan-v-x8": (8, 0, {"PIX": 4, "PHB": 8, "SYS": 16}, [None] * 8),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topology(name: str) -> None:
    machine = topology(name)
    assert (len(machine.gpus), len(machine.nics), codes(machine), numa(machine)) == TOPOLOGIES[name]


# file -> link -> the pairs that have it
LINKED_PAIRS: dict[str, dict[str, list[tuple[int, int]]]] = {
    "v100-sxm2-32g-x8": {
        "NV2": [(0, 2), (0, 7), (1, 3), (1, 6), (2, 3), (4, 5), (4, 6), (5, 7)],
        "NV1": [(0, 1), (0, 3), (1, 2), (2, 5), (3, 4), (4, 7), (5, 6), (6, 7)],
    },
    "a100-pcie-80g-bridged-x4": {"NV12": [(0, 1), (2, 3)]},
    "a6000-pair-plus-one": {"NV4": [(0, 1)], "NODE": [(0, 2), (1, 2)]},
    "l40s-x4": {"PHB": [(0, 1), (2, 3)]},
    "v100-pcie-32g-x4": {"PIX": [(0, 1), (2, 3)]},
    "pcie-x8-p2p": {"PIX": PAIRS_OF_8},
    "pcie-x6": {"PIX": PAIRS_OF_8[:3]},
    "titan-v-x8": {"PIX": PAIRS_OF_8},
}


@pytest.mark.parametrize("name", LINKED_PAIRS)
def test_linked_pairs(name: str) -> None:
    machine = topology(name)
    assert {link: pairs(machine, link) for link in LINKED_PAIRS[name]} == LINKED_PAIRS[name]


def test_every_gpu_of_the_cube_mesh_has_six_links() -> None:
    widths: Counter[int] = Counter()
    for pair, code in topology("v100-sxm2-32g-x8").gpu_paths.items():
        for gpu in pair:
            widths[gpu] += code.width or 0
    assert widths == dict.fromkeys(range(8), 6)


def test_network_cards_have_their_kernel_names() -> None:
    assert topology("a100-sxm4-80g-x4").nics == ("rocep49s0",)
    assert topology("a800-sxm4-80g-x8").nics == tuple(f"mlx5_bond_{n}" for n in range(8))


def test_network_cards_beside_gpus() -> None:
    a100, dgx, a800 = (topology(name) for name in ("a100-sxm4-80g-x4", "dgx-a100-x8", "a800-sxm4-80g-x8"))
    assert {code.path for code in a100.nic_paths.values()} == {"SYS"}
    for far in ("mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"):
        assert {dgx.nic_paths[gpu, far].path for gpu in range(8)} == {"SYS"}
    near = Counter(nic for (_, nic), code in a800.nic_paths.items() if code.path == "PIX")
    assert near == {f"mlx5_bond_{n}": 2 for n in range(8)}


# file -> GB/s of each GPU's active links, generation by speed alone
NVLINKS: dict[str, tuple[list[tuple[float, ...]], int | None]] = {
    "a100-sxm4-80g-x4": ([(25.0,) * 12] * 4, 3),
    "a100-pcie-40g-x2": ([()] * 2, None),
    "rtx3090-nvlink-x2": ([(14.062,) * 4] * 2, 3),
    "a6000-pair-plus-one": ([(14.062,) * 4, (14.062,) * 4, ()], 3),
}


@pytest.mark.parametrize("name", NVLINKS)
def test_nvlink_speeds(name: str) -> None:
    speeds, generation = NVLINKS[name]
    assert parse_nvlink_speeds(text_of(f"{name}.nvlink.txt")) == dict(enumerate(speeds))
    assert nvlink_generation(None, speeds[0][0] if speeds[0] else None) == generation


PEERS: dict[str, dict[tuple[int, int], bool]] = {
    "pcie-x8-p2p": dict.fromkeys(ALL_28, True),
    "h100-sxm-x8": dict.fromkeys(ALL_28, True),
    "l4-x2": {(0, 1): False},
}


@pytest.mark.parametrize("name", PEERS)
def test_peer_access(name: str) -> None:
    assert parse_peers(text_of(f"{name}.p2p-r.txt")) == PEERS[name]


def devices(name: str) -> Gpus:
    """What ``nvidia-smi -L`` alone makes of a machine."""
    host = HostMemory(total_bytes=64 * GIB, available_bytes=32 * GIB)
    return choose_gpus(Reading(boards=parse_list(text_of(f"{name}.smi-L.txt"))), {}, host)


# file -> name, number of usable devices, MIG profile, memory in GiB at least and at most
LISTS: dict[str, tuple[str, int, str | None, tuple[float, float] | None]] = {
    "b200-x2-container": ("NVIDIA B200", 2, None, None),
    "mig-a100-40g-1g.5gb-x7": ("NVIDIA A100-SXM4-40GB", 7, "1g.5gb", (4.5, 5)),
    "mig-a100-80g-x2-1g.10gb-x2": ("NVIDIA A100-SXM4-80GB", 4, "1g.10gb", (9.2, 10)),
    "mig-h100-80g-3g.40gb-container": ("NVIDIA H100 80GB HBM3", 1, "3g.40gb", (37, 40)),
    "rtx5090-x1": ("NVIDIA GeForce RTX 5090", 1, None, None),
    "rtx4090-x1": ("NVIDIA GeForce RTX 4090", 1, None, None),
}


@pytest.mark.parametrize("name", LISTS)
def test_listed_devices(name: str) -> None:
    model, count, profile, memory_gib = LISTS[name]
    gpus = devices(name).gpus
    assert [gpu.name for gpu in gpus] == [model] * count
    assert {gpu.mig.profile if gpu.mig else None for gpu in gpus} == {profile}
    assert all((gpu.uuid or "").startswith("MIG-" if profile else "GPU-") for gpu in gpus)
    assert len({gpu.uuid for gpu in gpus}) == count
    if memory_gib is not None:
        assert all(memory_gib[0] <= gpu.memory_total_bytes / GIB <= memory_gib[1] for gpu in gpus)


def test_slice_numbers_restart_at_each_board() -> None:
    boards = parse_list(text_of("mig-a100-80g-x2-1g.10gb-x2.smi-L.txt"))
    assert [[part.index for part in board.slices] for board in boards] == [[0, 1], [0, 1]]
    assert [board.mig_enabled for board in boards] == [True, True]


# file, columns where the file has none -> what all rows share, and free MiB of each
QUERIES: dict[str, tuple[tuple[str, ...] | None, int, dict[str, Any], str | None, list[int | None]]] = {
    "a100-sxm4-80g-x4.query.csv": (
        None, 4, {"memory_total_bytes": 81920 * MIB, "compute_capability": (8, 0)}, "580.105.08", [None] * 4,
    ),
    "a800-sxm4-80g-x8.query.csv": (
        None, 8, {"memory_total_bytes": 81920 * MIB, "compute_capability": (8, 0)}, "580.95.05",
        [8404, 12549, 12459, 12549, 67547, 81148, 81032, 65326],
    ),
    "rtx5090-x1.query-noheader-nounits.csv": (
        ("index", "name", "driver_version", "memory.total", "memory.used", "memory.free", "utilization.gpu"),
        1, {"memory_total_bytes": 32607 * MIB, "name": "NVIDIA GeForce RTX 5090"}, None, [27620],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_query(name: str) -> None:
    columns, count, shared, driver, free_mib = QUERIES[name]
    boards = parse_query(text_of(name), columns)
    assert [board.index for board in boards] == list(range(count))
    assert all(getattr(board, field) == value for board in boards for field, value in shared.items())
    assert [b.memory_free_bytes and b.memory_free_bytes // MIB for b in boards] == free_mib
    assert parse_query_column(text_of(name), "driver_version") == driver


# file -> indices, name, total MiB, MIG mode, ECC, driver, CUDA of the driver
SCREENS: dict[str, tuple[int, str, int, bool | None, bool | None, tuple[str, str]]] = {
    "h100-sxm5-80g-x8": (6, "NVIDIA H100 80GB HBM3", 81559, False, True, ("580.126.20", "13.0")),
    "l40s-x4": (4, "NVIDIA L40S", 46068, None, True, ("580.159.04", "13.0")),
    "rtx2080ti-nvlink-x2": (2, "NVIDIA GeForce RTX 2080 Ti", 22528, None, None, ("590.48.01", "13.1")),
}


@pytest.mark.parametrize("name", SCREENS)
def test_screen(name: str) -> None:
    count, model, total_mib, mig, ecc, versions = SCREENS[name]
    boards = parse_screen(text_of(f"{name}.smi.txt"))
    assert [board.index for board in boards] == list(range(count))
    assert {board.name for board in boards} == {model}
    assert {board.memory_total_bytes for board in boards} == {total_mib * MIB}
    assert {(board.mig_enabled, board.ecc_enabled) for board in boards} == {(mig, ecc)}
    assert all(board.compute_capability is None for board in boards), "the screen does not say"
    assert parse_versions(text_of(f"{name}.smi.txt")) == versions


def test_power_limits_of_the_screen_are_by_board() -> None:
    boards = parse_screen(text_of("rtx2080ti-nvlink-x2.smi.txt"))
    assert [board.power_limit_watts for board in boards] == [280, 260]
    assert [board.memory_free_bytes for board in boards] == [(22528 - 16) * MIB, (22528 - 7) * MIB]


# file -> name, number of GPUs, driver
REPORTS = {
    "v100-pcie-32g-x4.env.txt": ("Tesla V100-PCIE-32GB", 4, None),
    "rtx4090-x8.collect_env.txt": ("NVIDIA GeForce RTX 4090", 8, "550.90.07"),
    "t4-x1.collect_env.txt": ("Tesla T4", 1, "525.85.12"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_pasted_environment_report(name: str) -> None:
    model, count, driver = REPORTS[name]
    boards = parse_list(text_of(name))
    assert [(board.index, board.name) for board in boards] == [(index, model) for index in range(count)]
    assert parse_versions(text_of(name))[0] == driver


def test_torch_of_the_t4_report_was_built_for_cuda_11_8() -> None:
    assert "PyTorch version: 2.0.1+cu118" in text_of("t4-x1.collect_env.txt")
    assert parse_torch_cuda("2.0.1+cu118") == "11.8"


# file -> reader, logical, physical cores, NUMA nodes, architecture, flags that are there, flags that are not
CPUS: dict[str, tuple[Callable[[str], CpuText], tuple[Any, ...], set[str], set[str]]] = {
    "a100-sxm4-80g-x4.lscpu.txt": (parse_lscpu, (128, None, 2, None), set(), {"avx"}),
    "rtx2080ti-nvlink-x2.lscpu.txt": (parse_lscpu, (24, 12, 1, "x86_64"), {"avx2"}, {"avx512f"}),
    "t4-x1.collect_env.txt": (parse_lscpu, (2, 1, 1, "x86_64"), {"avx512f"}, {"amx_tile", "amx_bf16"}),
    "epyc-7451.lscpu.txt": (parse_lscpu, (96, 48, 8, None), {"avx2"}, {"avx512f"}),
    "epyc-7451.cpuinfo.first-two.txt": (parse_cpuinfo, (2, 2, None, None), {"avx2"}, {"avx512f"}),
    "xeon-x7550-no-avx.cpuinfo.first-two.txt": (parse_cpuinfo, (2, 2, None, None), {"sse4_2"}, {"avx", "avx2"}),
    "arm-a510-a710-a715-x3.lscpu.txt": (parse_lscpu, (8, 8, None, "aarch64"), {"bf16", "i8mm"}, {"avx", "avx2"}),
    "arm-a510-a710-a715-x3.cpuinfo.txt": (parse_cpuinfo, (8, None, None, "aarch64"), {"bf16", "i8mm"}, {"avx"}),
}


@pytest.mark.parametrize("name", CPUS)
def test_cpu(name: str) -> None:
    read, numbers, present, absent = CPUS[name]
    cpu = read(text_of(name))
    assert (cpu.logical_cores, cpu.physical_cores, cpu.numa_nodes, cpu.architecture) == numbers
    assert present <= set(cpu.flags)
    assert not absent & set(cpu.flags)


def test_cpu_names() -> None:
    assert parse_lscpu(text_of("a100-sxm4-80g-x4.lscpu.txt")).model_name == "AMD EPYC 7532 32-Core Processor"
    arm = parse_lscpu(text_of("arm-a510-a710-a715-x3.lscpu.txt"))
    assert arm.model_name == "Cortex-A510 + Cortex-A710 + Cortex-A715 + Cortex-X3"


CGROUPS: dict[str, tuple[Callable[[str], float | None], float | None]] = {
    "cgroup-v1-unlimited.memory.limit_in_bytes": (parse_memory_limit, None),
    "cgroup-v1-10m.memory.limit_in_bytes": (parse_memory_limit, 10 * MIB),
    "cgroup-v2-unlimited.memory.max": (parse_memory_limit, None),
    "cgroup-v2-64m.memory.max": (parse_memory_limit, 64 * MIB),
    "cgroup-v2-64m.cpu.max": (parse_cpu_max, 0.5),
}


@pytest.mark.parametrize("name", CGROUPS)
def test_container_limits(name: str) -> None:
    read, limit = CGROUPS[name]
    assert read(text_of(name)) == limit


# files read together -> vendor, name, count, memory, kinds of links, NUMA nodes
FOREIGN: dict[tuple[str, ...], tuple[str, str, int, int | None, dict[str, int], list[int]]] = {
    ("mi300x-x8.rocm-smi",): ("amd", "AMD Instinct MI300X", 8, None, {}, []),
    ("mi308x-x8.rocm-smi",): ("amd", "AMD GPU 0x74a2", 8, None, {}, []),
    ("mi308x-x8.rocm-smi-meminfo",): ("amd", "AMD GPU", 8, 206141652992, {}, []),
    ("mi308x-x8.rocm-smi-showtopo",): ("amd", "AMD GPU", 8, None, {"XGMI": 28}, [0, 0, 0, 0, 1, 1, 1, 1]),
    ("mi308x-x8.rocm-smi", "mi308x-x8.rocm-smi-meminfo", "mi308x-x8.rocm-smi-showtopo"): (
        "amd", "AMD GPU 0x74a2", 8, 206141652992, {"XGMI": 28}, [0, 0, 0, 0, 1, 1, 1, 1],
    ),
    ("metax-c500-x8.mx-smi-topo",): ("metax", "MetaX GPU", 8, None, {"MX": 12, "NODE": 16}, []),
    ("ascend-910b3-x8.npu-smi",): ("ascend", "Ascend 910B3", 8, 65536 * MIB, {}, []),
    ("ascend-910b3-x8.npu-smi-topo",): ("ascend", "Ascend NPU", 8, None, {"HCCS": 28}, []),
}  # fmt: skip


@pytest.mark.parametrize("names", FOREIGN, ids=" ".join)
def test_other_vendors_are_recognised_and_refused(names: tuple[str, ...]) -> None:
    vendor, model, count, memory, links, nodes = FOREIGN[names]
    found = parse_foreign("\n".join(text_of(f"{name}.txt") for name in names))
    assert found is not None
    assert (found.vendor, found.name, found.count, found.memory_bytes, found.links) == (
        vendor, model, count, memory, links,
    )  # fmt: skip
    assert list(found.numa_nodes.values()) == nodes
    assert f"{count} x {model}" in found.sentence()
    assert "not supported yet" in found.sentence()


def test_amd_gpus_are_one_hop_apart() -> None:
    found = parse_foreign(text_of("mi308x-x8.rocm-smi-showtopo.txt"))
    assert found is not None
    assert found.hops == 1


def test_metax_gpus_form_two_groups_of_four() -> None:
    matrix = parse_matrices(text_of("metax-c500-x8.mx-smi-topo.txt"))[0]
    near = {pair for pair, cell in matrix.pairs().items() if cell == "MX"}
    groups = [[f"GPU{n}" for n in half] for half in (range(4), range(4, 8))]
    assert near == {pair for group in groups for pair in combinations(group, 2)}


@pytest.mark.parametrize("name", ["metax-c500-x8.mx-smi-topo", "ascend-910b3-x8.npu-smi-topo", "mi300x-x8.rocm-smi"])
def test_no_other_vendor_passes_for_nvidia(name: str) -> None:
    with pytest.raises(UnreadableOutput):
        parse_topology(text_of(f"{name}.txt"))
    assert parse_list(text_of(f"{name}.txt")) == ()
    assert parse_screen(text_of(f"{name}.txt")) == ()


def test_no_nvidia_machine_passes_for_another_vendor() -> None:
    own = [p for p in MACHINES.iterdir() if not p.name.startswith(("mi300x", "mi308x", "metax", "ascend", "README"))]
    assert len(own) == 49
    assert [p.name for p in own if parse_foreign(p.read_text(encoding="utf-8"))] == []


def test_every_file_is_read_by_a_test() -> None:
    named = {
        *(f"{name}.topo.txt" for name in TOPOLOGIES), *(f"{name}.nvlink.txt" for name in NVLINKS),
        *(f"{name}.p2p-r.txt" for name in PEERS), *(f"{name}.smi-L.txt" for name in LISTS), *QUERIES, *REPORTS, *CPUS,
        *(f"{name}.smi.txt" for name in SCREENS), *CGROUPS, *(f"{n}.txt" for names in FOREIGN for n in names),
    }  # fmt: skip
    assert {p.name for p in MACHINES.iterdir()} - named == {"README.md"}
