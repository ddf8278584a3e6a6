"""Known GPUs: what a table can say of a card that is not here.

A probe beats this table wherever both speak: boards are modified, capped and cut. Peaks are dense, tensor rates
with FP32 accumulation (what training uses); ``matmul_tflops`` is the best 16-bit matmul anyone measured on the
card, a better ceiling than the peak (T4: 24, which its 70 W sustain, forums.developer.nvidia.com/t/264462).
Memory is what torch reports as total, before CUDA's context. Facts from vendors' datasheets and public prints;
prices per hour, on demand, as seen in 2026: a default to override.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from adaptft.errors import RequestError
from adaptft.facts import Cpu, Gpu, HostMemory, Machine, Software
from adaptft.units import GiB

PRICE_SOURCE = "on-demand list prices seen in 2026; they differ 2-4x between vendors"


HOST_BYTES_PER_GPU = 64 * GiB
ASSUMED_PACKAGES = ("torch", "transformers", "triton", "bitsandbytes")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row: rates in TFLOP/s, bandwidths in GB/s, 0 where the hardware has no such path."""

    key: str
    names: tuple[str, ...]
    compute_capability: tuple[int, int]
    sm_count: int
    memory_gib: float
    memory_gb_per_second: float
    fp32_tflops: float
    tf32_tflops: float
    fp16_tflops: float
    bf16_tflops: float
    fp8_tflops: float
    nvlink_gb_per_second: float
    matmul_tflops: float | None
    usd_per_hour: float | None


# fmt: off
_ROWS = (
    GpuModel("v100-16g", ("Tesla V100-SXM2-16GB",), (7, 0), 80, 15.78, 900, 15.7, 0, 125, 0, 0, 300, None, 0.55),
    GpuModel("v100-32g", ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB-LS"), (7, 0), 80, 31.74, 900, 15.7, 0, 125, 0, 0, 300, None, None),
    GpuModel("v100-pcie-16g", ("Tesla V100-PCIE-16GB",), (7, 0), 80, 15.78, 900, 14, 0, 112, 0, 0, 0, None, 0.55),
    GpuModel("v100-pcie-32g", ("Tesla V100-PCIE-32GB",), (7, 0), 80, 31.74, 900, 14, 0, 112, 0, 0, 0, None, None),
    GpuModel("t4", ("Tesla T4",), (7, 5), 40, 14.75, 320, 8.1, 0, 65, 0, 0, 0, 24, 0.59),
    GpuModel("a100-40g", ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), (8, 0), 108, 39.59, 1555, 19.5, 156, 312, 312, 0, 600, 271.2, 1.29),
    GpuModel("a100-80g", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB", "NVIDIA PG509-210"), (8, 0), 108, 79.25, 2039, 19.5, 156, 312, 312, 0, 600, 271.2, 1.89),
    GpuModel("a100-pcie-40g", ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), (8, 0), 108, 39.39, 1555, 19.5, 156, 312, 312, 0, 600, 252.9, 1.48),
    GpuModel("a100-pcie-80g", ("NVIDIA A100 80GB PCIe",), (8, 0), 108, 79.25, 1935, 19.5, 156, 312, 312, 0, 600, 252.9, 1.64),
    GpuModel("a30", ("NVIDIA A30",), (8, 0), 56, 23.5, 933, 10.3, 82, 165, 165, 0, 200, None, None),
    GpuModel("a800-80g", ("NVIDIA A800-SXM4-80GB",), (8, 0), 108, 79.25, 2039, 19.5, 156, 312, 312, 0, 400, 271.2, None),
    GpuModel("a800-pcie-80g", ("NVIDIA A800 80GB PCIe",), (8, 0), 108, 79.25, 1935, 19.5, 156, 312, 312, 0, 400, None, None),
    GpuModel("2080ti", ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"), (7, 5), 68, 10.75, 616, 13.4, 0, 53.8, 0, 0, 100, None, None),
    GpuModel("2080ti-22g", ("NVIDIA GeForce RTX 2080 Ti",), (7, 5), 68, 21.66, 616, 13.4, 0, 53.8, 0, 0, 100, None, None),
    GpuModel("3060", ("NVIDIA GeForce RTX 3060",), (8, 6), 28, 11.75, 360, 12.7, 12.7, 25.5, 25.5, 0, 0, None, None),
    GpuModel("3070", ("NVIDIA GeForce RTX 3070",), (8, 6), 46, 7.78, 448, 20.3, 20.3, 40.6, 40.6, 0, 0, None, None),
    GpuModel("3080", ("NVIDIA GeForce RTX 3080",), (8, 6), 68, 9.77, 760, 29.8, 29.8, 59.5, 59.5, 0, 0, None, None),
    GpuModel("3080ti", ("NVIDIA GeForce RTX 3080 Ti",), (8, 6), 80, 11.76, 912, 34.1, 34.1, 68.2, 68.2, 0, 0, None, None),
    GpuModel("3090", ("NVIDIA GeForce RTX 3090",), (8, 6), 82, 23.68, 936, 35.6, 35.6, 71, 71, 0, 112.5, None, 0.22),
    GpuModel("3090ti", ("NVIDIA GeForce RTX 3090 Ti",), (8, 6), 84, 23.6, 1008, 40, 40, 80, 80, 0, 112.5, None, None),
    GpuModel("a10", ("NVIDIA A10",), (8, 6), 72, 22.06, 600, 31.2, 62.5, 125, 125, 0, 0, None, 0.86),
    GpuModel("a10g", ("NVIDIA A10G",), (8, 6), 80, 22.19, 600, 35, 35, 70, 70, 0, 0, None, 1.01),
    GpuModel("a16", ("NVIDIA A16",), (8, 6), 10, 14.6, 200, 4.5, 9, 17.9, 17.9, 0, 0, None, None),
    GpuModel("a40", ("NVIDIA A40",), (8, 6), 84, 44.4, 696, 37.4, 74.8, 149.7, 149.7, 0, 112.5, None, 1.22),
    GpuModel("a4000", ("NVIDIA RTX A4000",), (8, 6), 48, 15.6, 448, 19.2, 38.3, 76.7, 76.7, 0, 0, None, None),
    GpuModel("a5000", ("NVIDIA RTX A5000",), (8, 6), 64, 23.67, 768, 27.8, 55.6, 111.1, 111.1, 0, 112.5, None, None),
    GpuModel("a6000", ("NVIDIA RTX A6000",), (8, 6), 84, 47.53, 768, 38.7, 77.4, 154.8, 154.8, 0, 112.5, None, 0.8),
    GpuModel("4060", ("NVIDIA GeForce RTX 4060",), (8, 9), 24, 7.63, 272, 15.1, 15.1, 30.2, 30.2, 60.4, 0, None, None),
    GpuModel("4060ti-16g", ("NVIDIA GeForce RTX 4060 Ti",), (8, 9), 34, 15.57, 288, 22.1, 22.1, 44.1, 44.1, 88.2, 0, None, None),
    GpuModel("4070", ("NVIDIA GeForce RTX 4070",), (8, 9), 46, 11.6, 504, 29.1, 29.1, 58.3, 58.3, 116.6, 0, None, None),
    GpuModel("4070ti-super", ("NVIDIA GeForce RTX 4070 Ti SUPER",), (8, 9), 66, 15.57, 672, 44.1, 44.1, 88.2, 88.2, 176.4, 0, None, None),
    GpuModel("4080", ("NVIDIA GeForce RTX 4080",), (8, 9), 76, 15.57, 716.8, 48.7, 48.7, 97.5, 97.5, 194.9, 0, None, None),
    GpuModel("4090", ("NVIDIA GeForce RTX 4090",), (8, 9), 128, 23.65, 1008, 82.6, 82.6, 165.2, 165.2, 330.3, 0, None, 0.34),
    GpuModel("4090d", ("NVIDIA GeForce RTX 4090 D",), (8, 9), 114, 23.65, 1008, 73.5, 73.5, 147, 147, 294, 0, None, None),
    GpuModel("6000ada", ("NVIDIA RTX 6000 Ada Generation",), (8, 9), 142, 47.5, 960, 91.1, 182.1, 364.2, 364.2, 728.5, 0, None, None),
    GpuModel("l4", ("NVIDIA L4",), (8, 9), 58, 22.05, 300, 30.3, 60, 121, 121, 242.5, 0, None, 0.8),
    GpuModel("l40", ("NVIDIA L40",), (8, 9), 142, 44.4, 864, 90.5, 90.5, 181, 181, 362, 0, None, 0.69),
    GpuModel("l40s", ("NVIDIA L40S",), (8, 9), 142, 44.52, 864, 91.6, 183, 362, 362, 733, 0, None, 1.95),
    GpuModel("gh200", ("NVIDIA GH200 480GB",), (9, 0), 132, 94.5, 4000, 67, 494.5, 989.4, 989.4, 1978.9, 900, 828.6, 1.5),
    GpuModel("h100", ("NVIDIA H100 80GB HBM3",), (9, 0), 132, 79.19, 3350, 67, 494.5, 989.4, 989.4, 1978.9, 900, 794.5, 3.78),
    GpuModel("h100-nvl", ("NVIDIA H100 NVL",), (9, 0), 132, 93.1, 3938, 60, 417.5, 835.5, 835.5, 1671, 600, None, None),
    GpuModel("h100-pcie", ("NVIDIA H100 PCIe",), (9, 0), 114, 79.11, 2039, 51.2, 378, 756, 756, 1513, 600, None, 2.86),
    GpuModel("h20", ("NVIDIA H20",), (9, 0), 78, 95.1, 4000, 44, 74, 148, 148, 296, 900, None, None),
    GpuModel("h20-3e", ("NVIDIA H20-3e",), (9, 0), 78, 139.8, 4800, 44, 74, 148, 148, 296, 900, None, None),
    GpuModel("h200", ("NVIDIA H200",), (9, 0), 132, 139.8, 4800, 67, 494.5, 989.4, 989.4, 1978.9, 900, 794.5, 3.59),
    GpuModel("h200-nvl", ("NVIDIA H200 NVL",), (9, 0), 132, 139.8, 4800, 60, 417.5, 835.5, 835.5, 1671, 900, None, None),
    GpuModel("h800", ("NVIDIA H800",), (9, 0), 132, 79.19, 3350, 67, 494.5, 989.4, 989.4, 1978.9, 400, 794.5, None),
    GpuModel("h800-pcie", ("NVIDIA H800 PCIe",), (9, 0), 114, 79.11, 2039, 51.2, 378, 756, 756, 1513, 400, None, None),
    GpuModel("b200", ("NVIDIA B200",), (10, 0), 148, 178.36, 7700, 75, 1125, 2250, 2250, 4500, 1800, 1745, 5.98),
    GpuModel("gb200", ("NVIDIA GB200",), (10, 0), 152, 184, 8000, 80, 1250, 2500, 2500, 5000, 1800, 1822, None),
    GpuModel("b300", ("NVIDIA B300 SXM6 AC",), (10, 3), 148, 268, 8000, 77, 1125, 2250, 2250, 4500, 1800, 1769, 7.89),
    GpuModel("gb300", ("NVIDIA GB300",), (10, 3), 152, 277, 8000, 80, 1250, 2500, 2500, 5000, 1800, None, None),
    GpuModel("5070ti", ("NVIDIA GeForce RTX 5070 Ti",), (12, 0), 70, 15.47, 896, 43.9, 43.9, 87.9, 87.9, 175.8, 0, None, None),
    GpuModel("5080", ("NVIDIA GeForce RTX 5080",), (12, 0), 84, 15.47, 960, 56.3, 56.3, 112.6, 112.6, 225.1, 0, None, None),
    GpuModel("5090", ("NVIDIA GeForce RTX 5090",), (12, 0), 170, 31.36, 1792, 104.8, 104.8, 209.5, 209.5, 419, 0, None, 0.69),
    GpuModel("pro6000", ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",), (12, 0), 188, 94.97, 1792, 125, 251.9, 503.8, 503.8, 1007.6, 0, None, 0.89),
)
# fmt: on

GPU_MODELS: dict[str, GpuModel] = {row.key: row for row in _ROWS}
# boards with one name differ in memory only: the first row has what else the name says
_BY_NAME: dict[str, GpuModel] = {name: row for row in reversed(_ROWS) for name in row.names}

_MAKERS_WORDS = re.compile(r"nvidia|geforce|rtx|tesla|quadro|generation|[^a-z0-9]")
_NOMINAL_GB = (8, 10, 11, 12, 16, 22, 24, 32, 40, 48, 80, 94, 96, 141, 180, 186, 270, 279)
_ALSO = {
    "h100-sxm": "h100", "h100-sxm5": "h100", "h200-sxm": "h200", "a100-sxm-40g": "a100-40g", "a100-sxm-80g": "a100-80g",
    "v100-sxm2-16g": "v100-16g", "v100-sxm2-32g": "v100-32g", "a100-80g-pcie": "a100-pcie-80g",
}  # fmt: skip


def known_gpu(gpu: Gpu) -> GpuModel | None:
    """The table's row for a probed GPU, by its exact name (a MIG slice: by its board's)."""
    return _BY_NAME.get(gpu.mig.parent if gpu.mig else gpu.name)


def _squash(name: str) -> str:
    """``NVIDIA A100-SXM4-80GB`` as ``a100sxm480g``: without the maker's words, blanks and dashes."""
    return _MAKERS_WORDS.sub("", re.sub(r"(\d)\s*gi?b\b", r"\1g", name.lower()))


def _spellings() -> dict[str, dict[str, GpuModel]]:
    """Squashed names to the rows that they can mean, by key; keys win over everything else."""
    table: dict[str, dict[str, GpuModel]] = {}
    for row in _ROWS:
        memory = next(size for size in _NOMINAL_GB if size >= row.memory_gib)
        for name in (*row.names, f"{row.key}-{memory}g", *(f"{name} {memory}GB" for name in row.names)):
            table.setdefault(_squash(name), {})[row.key] = row
    keys = {**{row.key: row for row in _ROWS}, **{also: GPU_MODELS[key] for also, key in _ALSO.items()}}
    return table | {_squash(key): {row.key: row} for key, row in keys.items()}


_SPELLINGS = _spellings()


def _row_named(name: str) -> GpuModel:
    """The one row that ``name`` can mean, in a key's or the maker's or anybody's spelling.

    Raises:
        RequestError: none, or several; they are named.
    """
    asked = _squash(name)
    found = _SPELLINGS.get(asked, {})
    if len(found) == 1:
        return next(iter(found.values()))
    longer = {
        key: row for spelling, rows in _SPELLINGS.items() if spelling.startswith(asked) for key, row in rows.items()
    }
    if len(asked) > 1 and (meant := found or longer):
        rows = ", ".join(f"{row.key} ({row.names[0]}, {row.memory_gib:.0f} GiB)" for row in meant.values())
        several = "is one of several" if len(meant) > 1 else "is not the whole name of a GPU"
        raise RequestError(f"--gpu {name} {several}.", fix=f"Write the one you mean: {rows}.")
    near = get_close_matches(asked, GPU_MODELS, n=3, cutoff=0.4)
    raise RequestError(
        f"There is no GPU {name!r} in the table.",
        fix=f"Did you mean {', '.join(near) or 'a100-80g'}? All: {', '.join(GPU_MODELS)}.",
    )


def gpu_named(key: str, *, index: int = 0) -> Gpu:
    """The GPU that ``--gpu KEY`` means, whole and idle.

    Raises:
        RequestError: no such GPU, or several; they are named.
    """
    model = _row_named(key)
    memory = int(model.memory_gib * GiB)
    return Gpu(
        index=index,
        name=model.names[0],
        compute_capability=model.compute_capability,
        memory_total_bytes=memory,
        memory_free_bytes=memory,
        sm_count=model.sm_count,
    )


def machine_with(key: str, count: int = 1) -> Machine:
    """A machine that nobody probed: ``count`` idle GPUs of one kind in an ordinary host with everything installed.

    Raises:
        RequestError: no such GPU, or no positive count.
    """
    if count < 1:
        raise RequestError(f"--gpus {count} is no number of GPUs.", fix="Name 1 or more.")
    host = count * HOST_BYTES_PER_GPU
    return Machine(
        gpus=tuple(gpu_named(key, index=index) for index in range(count)),
        cpu=Cpu(
            model_name="assumed",
            architecture="x86_64",
            logical_cores=8 * count,
            physical_cores=None,
            usable_cores=8 * count,
        ),
        memory=HostMemory(total_bytes=host, available_bytes=host),
        software=Software(python="3.12", packages=dict.fromkeys(ASSUMED_PACKAGES, "assumed")),
        notes=("This machine was not probed: idle GPUs from the table, and an ordinary host, are assumed.",),
    )
