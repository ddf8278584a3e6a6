"""Facts of GPUs that a table can know, one row a board.

Peaks are dense, tensor rates with FP32 accumulation (what training uses): half of what a data sheet gives with
sparsity, and on GeForce boards half of the rate with FP16 accumulation. ``matmul_tflops`` is the best 16-bit
matmul that was measured on the board, a better ceiling than the peak: the "maximum achievable matmul" table of
github.com/stas00/ml-engineering (2026-08); T4: 24 at its 70 W (forums.developer.nvidia.com/t/264462); L4: half of
its peak at its 72 W, from memory, since nobody's measurement was found. Memory is what torch reports as total with
ECC as shipped (inline ECC takes 6.25 % of GDDR6 boards), before CUDA's context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CHECKED = "data sheet, agreeing with a second document or with prints of real boards"
SHEET = "data sheet"
MEMORY = "memory of the data sheet or an announcement, not looked up"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One row: rates in TFLOP/s, bandwidths in GB/s, 0 where the hardware has no such path.

    ``nvlink`` tells boards that are always joined (SXM modules) from cards that need a bridge between them.
    ``mig_slices`` is the number of compute slices that MIG cuts the board into. ``--gpu-file`` reads one row.
    """

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
    matmul_tflops: float | None = None
    nvlink_gb_per_second: float = 0
    nvlink: Literal["", "nvlink", "bridge"] = ""
    pcie_generation: int = 4
    mig_slices: int = 0
    source: str = MEMORY


# key, names that torch prints, capability, SMs, GiB, GB/s; TFLOP/s of fp32, tf32, fp16, bf16, fp8, best matmul;
# NVLink GB/s (both directions together) and kind, PCIe generation, MIG slices, source
# fmt: off
ROWS = (
    GpuModel("p100", ("Tesla P100-SXM2-16GB",), (6, 0), 56, 15.9, 732, 10.6, 0, 21.2, 0, 0, None, 160, "nvlink", 3, 0, SHEET),
    GpuModel("p100-pcie", ("Tesla P100-PCIE-16GB",), (6, 0), 56, 15.9, 732, 9.3, 0, 18.7, 0, 0, None, 0, "", 3, 0, SHEET),
    GpuModel("v100-16g", ("Tesla V100-SXM2-16GB",), (7, 0), 80, 15.78, 900, 15.7, 0, 125, 0, 0, None, 300, "nvlink", 3, 0, CHECKED),
    GpuModel("v100-32g", ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB-LS"), (7, 0), 80, 31.74, 900, 15.7, 0, 125, 0, 0, None, 300, "nvlink", 3, 0, SHEET),
    GpuModel("v100-pcie-16g", ("Tesla V100-PCIE-16GB",), (7, 0), 80, 15.78, 900, 14, 0, 112, 0, 0, None, 0, "", 3, 0, SHEET),
    GpuModel("v100-pcie-32g", ("Tesla V100-PCIE-32GB",), (7, 0), 80, 31.74, 900, 14, 0, 112, 0, 0, None, 0, "", 3, 0, SHEET),
    GpuModel("t4", ("Tesla T4",), (7, 5), 40, 14.75, 320, 8.1, 0, 65, 0, 0, 24, 0, "", 3, 0, CHECKED),
    GpuModel("2080ti", ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"), (7, 5), 68, 10.75, 616, 13.4, 0, 53.8, 0, 0, None, 100, "bridge", 3, 0, MEMORY),
    GpuModel("2080ti-22g", ("NVIDIA GeForce RTX 2080 Ti",), (7, 5), 68, 21.66, 616, 13.4, 0, 53.8, 0, 0, None, 100, "bridge", 3, 0, MEMORY),
    GpuModel("a100-40g", ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"), (8, 0), 108, 39.59, 1555, 19.5, 156, 312, 312, 0, 271.2, 600, "nvlink", 4, 7, CHECKED),
    GpuModel("a100-80g", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB", "NVIDIA PG509-210"), (8, 0), 108, 79.25, 2039, 19.5, 156, 312, 312, 0, 271.2, 600, "nvlink", 4, 7, CHECKED),
    GpuModel("a100-pcie-40g", ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), (8, 0), 108, 39.39, 1555, 19.5, 156, 312, 312, 0, 252.9, 600, "bridge", 4, 7, CHECKED),
    GpuModel("a100-pcie-80g", ("NVIDIA A100 80GB PCIe",), (8, 0), 108, 79.25, 1935, 19.5, 156, 312, 312, 0, 252.9, 600, "bridge", 4, 7, CHECKED),
    GpuModel("a30", ("NVIDIA A30",), (8, 0), 56, 23.5, 933, 10.3, 82, 165, 165, 0, None, 200, "bridge", 4, 4, SHEET),
    GpuModel("a800-80g", ("NVIDIA A800-SXM4-80GB",), (8, 0), 108, 79.25, 2039, 19.5, 156, 312, 312, 0, 271.2, 400, "nvlink", 4, 7, SHEET),
    GpuModel("a800-pcie-80g", ("NVIDIA A800 80GB PCIe",), (8, 0), 108, 79.25, 1935, 19.5, 156, 312, 312, 0, None, 400, "bridge", 4, 7, SHEET),
    GpuModel("3060", ("NVIDIA GeForce RTX 3060",), (8, 6), 28, 11.75, 360, 12.7, 12.7, 25.5, 25.5, 0, None, 0, "", 4, 0, MEMORY),
    GpuModel("3070", ("NVIDIA GeForce RTX 3070",), (8, 6), 46, 7.78, 448, 20.3, 20.3, 40.6, 40.6, 0, None, 0, "", 4, 0, MEMORY),
    GpuModel("3080", ("NVIDIA GeForce RTX 3080",), (8, 6), 68, 9.77, 760, 29.8, 29.8, 59.5, 59.5, 0, None, 0, "", 4, 0, MEMORY),
    GpuModel("3080ti", ("NVIDIA GeForce RTX 3080 Ti",), (8, 6), 80, 11.76, 912, 34.1, 34.1, 68.2, 68.2, 0, None, 0, "", 4, 0, MEMORY),
    GpuModel("3090", ("NVIDIA GeForce RTX 3090",), (8, 6), 82, 23.68, 936, 35.6, 35.6, 71, 71, 0, None, 112.5, "bridge", 4, 0, CHECKED),
    GpuModel("3090ti", ("NVIDIA GeForce RTX 3090 Ti",), (8, 6), 84, 23.6, 1008, 40, 40, 80, 80, 0, None, 112.5, "bridge", 4, 0, SHEET),
    GpuModel("a10", ("NVIDIA A10",), (8, 6), 72, 22.06, 600, 31.2, 62.5, 125, 125, 0, None, 0, "", 4, 0, CHECKED),
    GpuModel("a10g", ("NVIDIA A10G",), (8, 6), 80, 22.19, 600, 35, 35, 70, 70, 0, None, 0, "", 4, 0, CHECKED),
    GpuModel("a16", ("NVIDIA A16",), (8, 6), 10, 14.6, 200, 4.5, 9, 17.9, 17.9, 0, None, 0, "", 4, 0, SHEET),
    GpuModel("a40", ("NVIDIA A40",), (8, 6), 84, 44.4, 696, 37.4, 74.8, 149.7, 149.7, 0, None, 112.5, "bridge", 4, 0, CHECKED),
    GpuModel("a4000", ("NVIDIA RTX A4000",), (8, 6), 48, 15.6, 448, 19.2, 38.3, 76.7, 76.7, 0, None, 0, "", 4, 0, SHEET),
    GpuModel("a5000", ("NVIDIA RTX A5000",), (8, 6), 64, 23.67, 768, 27.8, 55.6, 111.1, 111.1, 0, None, 112.5, "bridge", 4, 0, MEMORY),
    GpuModel("a6000", ("NVIDIA RTX A6000",), (8, 6), 84, 47.53, 768, 38.7, 77.4, 154.8, 154.8, 0, None, 112.5, "bridge", 4, 0, CHECKED),
    GpuModel("4060", ("NVIDIA GeForce RTX 4060",), (8, 9), 24, 7.63, 272, 15.1, 15.1, 30.2, 30.2, 60.4, None, 0, "", 4, 0, MEMORY),
    GpuModel("4060ti-16g", ("NVIDIA GeForce RTX 4060 Ti",), (8, 9), 34, 15.57, 288, 22.1, 22.1, 44.1, 44.1, 88.2, None, 0, "", 4, 0, MEMORY),
    GpuModel("4070", ("NVIDIA GeForce RTX 4070",), (8, 9), 46, 11.6, 504, 29.1, 29.1, 58.3, 58.3, 116.6, None, 0, "", 4, 0, MEMORY),
    GpuModel("4070ti-super", ("NVIDIA GeForce RTX 4070 Ti SUPER",), (8, 9), 66, 15.57, 672, 44.1, 44.1, 88.2, 88.2, 176.4, None, 0, "", 4, 0, MEMORY),
    GpuModel("4080", ("NVIDIA GeForce RTX 4080",), (8, 9), 76, 15.57, 716.8, 48.7, 48.7, 97.5, 97.5, 194.9, None, 0, "", 4, 0, MEMORY),
    GpuModel("4090", ("NVIDIA GeForce RTX 4090",), (8, 9), 128, 23.65, 1008, 82.6, 82.6, 165.2, 165.2, 330.3, None, 0, "", 4, 0, CHECKED),
    GpuModel("4090d", ("NVIDIA GeForce RTX 4090 D",), (8, 9), 114, 23.65, 1008, 73.5, 73.5, 147, 147, 294, None, 0, "", 4, 0, MEMORY),
    GpuModel("6000ada", ("NVIDIA RTX 6000 Ada Generation",), (8, 9), 142, 47.5, 960, 91.1, 182.1, 364.2, 364.2, 728.5, None, 0, "", 4, 0, SHEET),
    GpuModel("l4", ("NVIDIA L4",), (8, 9), 58, 22.05, 300, 30.3, 60, 121, 121, 242.5, 60.5, 0, "", 4, 0, CHECKED),
    GpuModel("l40", ("NVIDIA L40",), (8, 9), 142, 44.4, 864, 90.5, 90.5, 181, 181, 362, None, 0, "", 4, 0, SHEET),
    GpuModel("l40s", ("NVIDIA L40S",), (8, 9), 142, 44.52, 864, 91.6, 183, 362, 362, 733, None, 0, "", 4, 0, CHECKED),
    GpuModel("gh200", ("NVIDIA GH200 480GB",), (9, 0), 132, 94.5, 4000, 67, 494.5, 989.4, 989.4, 1978.9, 828.6, 900, "nvlink", 5, 7, SHEET),
    GpuModel("h100", ("NVIDIA H100 80GB HBM3",), (9, 0), 132, 79.19, 3350, 67, 494.5, 989.4, 989.4, 1978.9, 794.5, 900, "nvlink", 5, 7, CHECKED),
    GpuModel("h100-nvl", ("NVIDIA H100 NVL",), (9, 0), 132, 93.1, 3938, 60, 417.5, 835.5, 835.5, 1671, None, 600, "bridge", 5, 7, SHEET),
    GpuModel("h100-pcie", ("NVIDIA H100 PCIe",), (9, 0), 114, 79.11, 2039, 51.2, 378, 756, 756, 1513, None, 600, "bridge", 5, 7, CHECKED),
    GpuModel("h20", ("NVIDIA H20",), (9, 0), 78, 95.1, 4000, 44, 74, 148, 148, 296, None, 900, "nvlink", 5, 7, SHEET),
    GpuModel("h20-3e", ("NVIDIA H20-3e",), (9, 0), 78, 139.8, 4800, 44, 74, 148, 148, 296, None, 900, "nvlink", 5, 7, MEMORY),
    GpuModel("h200", ("NVIDIA H200",), (9, 0), 132, 139.8, 4800, 67, 494.5, 989.4, 989.4, 1978.9, 794.5, 900, "nvlink", 5, 7, CHECKED),
    GpuModel("h200-nvl", ("NVIDIA H200 NVL",), (9, 0), 132, 139.8, 4800, 60, 417.5, 835.5, 835.5, 1671, None, 900, "bridge", 5, 7, SHEET),
    GpuModel("h800", ("NVIDIA H800",), (9, 0), 132, 79.19, 3350, 67, 494.5, 989.4, 989.4, 1978.9, 794.5, 400, "nvlink", 5, 7, SHEET),
    GpuModel("h800-pcie", ("NVIDIA H800 PCIe",), (9, 0), 114, 79.11, 2039, 51.2, 378, 756, 756, 1513, None, 400, "bridge", 5, 7, SHEET),
    GpuModel("h100-96g", ("NVIDIA H100 96GB HBM2e", "NVIDIA H100"), (9, 0), 132, 94.5, 2400, 67, 494.5, 989.4, 989.4, 1978.9, None, 900, "nvlink", 5, 7, MEMORY),
    GpuModel("gh200-144g", ("NVIDIA GH200 144G HBM3e",), (9, 0), 132, 143.4, 4900, 67, 494.5, 989.4, 989.4, 1978.9, 828.6, 900, "nvlink", 5, 7, MEMORY),
    GpuModel("b200", ("NVIDIA B200",), (10, 0), 148, 178.36, 7700, 75, 1125, 2250, 2250, 4500, 1745, 1800, "nvlink", 5, 7, CHECKED),
    GpuModel("gb200", ("NVIDIA GB200",), (10, 0), 152, 184, 8000, 80, 1250, 2500, 2500, 5000, 1822, 1800, "nvlink", 5, 7, SHEET),
    GpuModel("b100", ("NVIDIA B100",), (10, 0), 148, 178, 8000, 60, 875, 1750, 1750, 3500, None, 1800, "nvlink", 5, 7, MEMORY),
    GpuModel("b300", ("NVIDIA B300 SXM6 AC",), (10, 3), 148, 268, 8000, 77, 1125, 2250, 2250, 4500, 1769, 1800, "nvlink", 6, 7, SHEET),
    GpuModel("gb300", ("NVIDIA GB300",), (10, 3), 152, 277, 8000, 80, 1250, 2500, 2500, 5000, None, 1800, "nvlink", 6, 7, SHEET),
    GpuModel("5070ti", ("NVIDIA GeForce RTX 5070 Ti",), (12, 0), 70, 15.47, 896, 43.9, 43.9, 87.9, 87.9, 175.8, None, 0, "", 5, 0, MEMORY),
    GpuModel("5080", ("NVIDIA GeForce RTX 5080",), (12, 0), 84, 15.47, 960, 56.3, 56.3, 112.6, 112.6, 225.1, None, 0, "", 5, 0, MEMORY),
    GpuModel("5090", ("NVIDIA GeForce RTX 5090",), (12, 0), 170, 31.36, 1792, 104.8, 104.8, 209.5, 209.5, 419, None, 0, "", 5, 0, CHECKED),
    GpuModel("pro6000", ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",), (12, 0), 188, 94.97, 1792, 125, 251.9, 503.8, 503.8, 1007.6, None, 0, "", 5, 4, SHEET),
    GpuModel("pro6000-server", ("NVIDIA RTX PRO 6000 Blackwell Server Edition",), (12, 0), 188, 94.97, 1597, 120, 234, 468, 468, 937, None, 0, "", 5, 4, SHEET),
    GpuModel("pro6000-maxq", ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",), (12, 0), 188, 94.97, 1792, 110, 219, 438, 438, 877, None, 0, "", 5, 4, SHEET),
    GpuModel("gb10", ("NVIDIA GB10",), (12, 1), 48, 119, 273, 31, 62, 125, 125, 250, None, 0, "", 5, 0, MEMORY),
)
# fmt: on

OTHER_VENDORS = {
    "AMD Instinct MI250X": "AMD", "AMD Instinct MI300X": "AMD", "AMD Instinct MI325X": "AMD",
    "AMD Instinct MI355X": "AMD", "Apple M3 Ultra": "Apple", "Apple M4 Max": "Apple",
}  # fmt: skip
"""Accelerators that people ask for and adaptft does not train on."""
