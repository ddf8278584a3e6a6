"""Write the recorded machines of this folder: ``python tests/machines/make.py``.

Facts are NVIDIA's data sheets and what ``nvidia-smi`` is known to print for these boards; UUIDs are made up.
A machine is a row of ``RECORDED``; the form is the one of ``adaptft probe --json``.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from adaptft.facts import Cpu, Disk, Gpu, HostMemory, Link, LinkPath, Machine, MigSlice, Software
from adaptft.records import write_json
from adaptft.units import GiB, MiB

FOLDER = Path(__file__).parent
_NAMESPACE = uuid.UUID("5f3d8a52-9f60-4d0c-8f0e-0a1d2c3b4e5f")
AVX2 = ("sse4_2", "f16c", "fma", "avx", "avx2")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
ZEN4 = (*AVX512, "avx512_vnni", "avx512_bf16")
SAPPHIRE_RAPIDS = (
    *AVX2, "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """A board: MiB as nvidia-smi prints them, free on an idle board; ``pcie`` is generation and width."""

    name: str
    compute_capability: tuple[int, int]
    total_mib: int
    free_mib: int
    sm_count: int
    watts: float
    ecc: bool | None
    pcie: tuple[int, int]


MODELS = {
    "t4": Model("Tesla T4", (7, 5), 15360, 14926, 40, 70, True, (3, 16)),
    "v100": Model("Tesla V100-SXM2-16GB", (7, 0), 16384, 15940, 80, 300, True, (3, 16)),
    "a10": Model("NVIDIA A10", (8, 6), 23028, 22515, 72, 150, True, (4, 16)),
    "4090": Model("NVIDIA GeForce RTX 4090", (8, 9), 24564, 24080, 128, 450, None, (4, 16)),
    "a100-40g": Model("NVIDIA A100-SXM4-40GB", (8, 0), 40960, 40326, 108, 400, True, (4, 16)),
    "a100-80g": Model("NVIDIA A100-SXM4-80GB", (8, 0), 81920, 81154, 108, 400, True, (4, 16)),
    "l4": Model("NVIDIA L4", (8, 9), 23034, 22563, 58, 72, True, (4, 16)),
    "l40s": Model("NVIDIA L40S", (8, 9), 46068, 45469, 142, 350, True, (4, 16)),
    "h100": Model("NVIDIA H100 80GB HBM3", (9, 0), 81559, 81008, 132, 700, True, (5, 16)),
    "h200": Model("NVIDIA H200", (9, 0), 143771, 143156, 132, 700, True, (5, 16)),
}


def host(
    name: str, threads: int, cores: int, memory_gib: int, flags: tuple[str, ...], numa_nodes: int = 1
) -> tuple[Cpu, HostMemory]:
    """A host whose memory is nearly free."""
    cpu = Cpu(
        model_name=name, architecture="x86_64", logical_cores=threads, physical_cores=cores,
        usable_cores=float(threads), numa_nodes=numa_nodes, flags=flags,
    )  # fmt: skip
    return cpu, HostMemory(total_bytes=memory_gib * GiB, available_bytes=int(memory_gib * 0.94) * GiB)


def gpus(machine: str, model: Model, numa_nodes: tuple[int | None, ...]) -> tuple[Gpu, ...]:
    """One board for each NUMA node."""
    return tuple(
        Gpu(
            index=index,
            name=model.name,
            compute_capability=model.compute_capability,
            memory_total_bytes=model.total_mib * MiB,
            memory_free_bytes=model.free_mib * MiB,
            sm_count=model.sm_count,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{machine}/{index}')}",
            ecc_enabled=model.ecc,
            pci_bus_id=f"00000000:{0x10 * (index + 1):02X}:00.0",
            pcie_generation=model.pcie[0],
            pcie_width=model.pcie[1],
            power_limit_watts=model.watts,
            numa_node=node,
        )
        for index, node in enumerate(numa_nodes)
    )


def links(
    count: int, path: LinkPath, *, width: int | None = None, generation: int | None = None, peers: bool = True
) -> tuple[Link, ...]:
    """The same link between all pairs."""
    return tuple(
        Link(a=a, b=b, path=path, nvlink_width=width, nvlink_generation=generation, peer_access=peers)
        for a, b in combinations(range(count), 2)
    )


def by_socket(each: int, *, peers: bool) -> tuple[Link, ...]:
    """``each`` boards behind either of two sockets: NODE within one, SYS between them."""
    return tuple(
        Link(a=a, b=b, path="NODE" if a // each == b // each else "SYS", peer_access=peers)
        for a, b in combinations(range(2 * each), 2)
    )


def software(driver: str | None, driver_cuda: str | None) -> Software:
    """A fresh installation of adaptft with all extras that train."""
    cuda = driver is not None
    packages = {
        "torch": "2.13.0" if cuda else "2.13.0+cpu", "transformers": "5.17.0", "peft": "0.21.2",
        "accelerate": "1.15.0", "datasets": "5.2.0", "safetensors": "0.8.0", "bitsandbytes": "0.50.2",
        "llmcompressor": "0.14.0.1", "compressed-tensors": "0.19.0", "gguf": "0.19.0", "openai": "3.57.0",
    }  # fmt: skip
    packages |= {"triton": "3.7.0"} if cuda else {}  # a requirement of torch's CUDA wheels for Linux
    return Software(
        python="3.12.3",
        nvidia_driver=driver,
        driver_cuda=driver_cuda,
        torch_cuda="13.0" if cuda else None,
        packages=packages,
    )


def machine(
    name: str,
    model: str | None,
    numa_nodes: tuple[int | None, ...],
    on: tuple[Cpu, HostMemory],
    joined: tuple[Link, ...] = (),
    disk_gib: int = 512,
) -> Machine:
    """A machine with a board of ``model`` on each of ``numa_nodes``."""
    cpu, memory = on
    disk = Disk(path="/home/user", total_bytes=disk_gib * GiB, free_bytes=disk_gib * GiB * 3 // 4)
    notes = () if model else ("NVML says: NVML Shared Library Not Found.", "nvidia-smi is not installed.")
    return Machine(
        gpus=gpus(name, MODELS[model], numa_nodes) if model else (),
        cpu=cpu,
        memory=memory,
        software=software("580.159.04", "13.0") if model else software(None, None),
        links=joined,
        disk=disk,
        notes=notes,
    )


def mig_slice(name: str) -> Machine:
    """A container that sees one 3g.40gb slice of an H100: 40448 MiB and 60 SMs, never the board's 80 GB."""
    whole = machine(name, "h100", (0,), host("Intel(R) Xeon(R) Platinum 8480+", 16, 8, 128, SAPPHIRE_RAPIDS))
    board = whole.gpus[0]
    address = f"MIG-{uuid.uuid5(_NAMESPACE, name)}"
    part = replace(
        board,
        memory_total_bytes=40448 * MiB,
        memory_free_bytes=40411 * MiB,
        sm_count=60,
        uuid=address,
        mig=MigSlice(profile="3g.40gb", parent=board.name, uuid=address),
    )
    return replace(whole, gpus=(part,))


EPYC = "AMD EPYC 7763 64-Core Processor"
XEON = "Intel(R) Xeon(R) Platinum 8480+"
RYZEN = "AMD Ryzen 9 7950X 16-Core Processor"
COLAB = ("Intel(R) Xeon(R) CPU @ 2.00GHz", 2, 1, 13, AVX512)
TWO_NODES = (0, 0, 0, 0, 1, 1, 1, 1)

RECORDED: dict[str, Machine] = {
    "t4": machine("t4", "t4", (0,), host(*COLAB), disk_gib=112),
    "v100": machine("v100", "v100", (0,), host("Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", 8, 4, 61, AVX2)),
    "a10": machine("a10", "a10", (0,), host("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 30, 30, 200, AVX512)),
    "4090": machine("4090", "4090", (None,), host(RYZEN, 32, 16, 64, ZEN4)),
    "4090x2": machine("4090x2", "4090", (None, None), host(RYZEN, 32, 16, 128, ZEN4), links(2, "PHB", peers=False)),
    "a100-40g": machine("a100-40g", "a100-40g", (0,), host("Intel(R) Xeon(R) CPU @ 2.20GHz", 12, 6, 85, AVX512)),
    "a100x8-nvlink": machine(
        "a100x8-nvlink", "a100-80g", (3, 3, 1, 1, 7, 7, 5, 5), host(EPYC, 256, 128, 2048, AVX2, numa_nodes=8),
        links(8, "NV", width=12, generation=3), disk_gib=4096,
    ),
    "l4x4-pcie": machine(
        "l4x4-pcie", "l4", (0, 0, 0, 0), host("Intel(R) Xeon(R) CPU @ 2.20GHz", 48, 24, 192, AVX512),
        links(4, "PHB", peers=False),
    ),
    "l4x8-pcie": machine(
        "l4x8-pcie", "l4", TWO_NODES, host("Intel(R) Xeon(R) CPU @ 2.20GHz", 96, 48, 384, AVX512, numa_nodes=2),
        by_socket(4, peers=False),
    ),
    "a10x2-pcie": machine(
        "a10x2-pcie", "a10", (0, 0), host("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 60, 60, 400, AVX512),
        links(2, "PHB"),
    ),
    "4090x4": machine(
        "4090x4", "4090", (0, 0, 0, 0), host("AMD EPYC 7543 32-Core Processor", 64, 32, 256, AVX2),
        links(4, "NODE", peers=False),
    ),
    "h200x8": machine(
        "h200x8", "h200", TWO_NODES, host(XEON, 224, 112, 2048, SAPPHIRE_RAPIDS, numa_nodes=2),
        links(8, "NV", width=18, generation=4), disk_gib=8192,
    ),
    "l40s": machine("l40s", "l40s", (0,), host("AMD EPYC 9354 32-Core Processor", 32, 32, 128, ZEN4)),
    "h100x8": machine(
        "h100x8", "h100", TWO_NODES, host(XEON, 224, 112, 2048, SAPPHIRE_RAPIDS, numa_nodes=2),
        links(8, "NV", width=18, generation=4), disk_gib=8192,
    ),
    "h200": machine("h200", "h200", (None,), host("Intel(R) Xeon(R) Processor", 16, 16, 126, SAPPHIRE_RAPIDS)),
    "mig-3g.40gb": mig_slice("mig-3g.40gb"),
    "cpu": machine("cpu", None, (), host("AMD EPYC 9354 32-Core Processor", 8, 4, 32, ZEN4), disk_gib=128),
}  # fmt: skip


if __name__ == "__main__":
    for file_name, recorded in RECORDED.items():
        write_json(FOLDER / f"{file_name}.json", recorded)
