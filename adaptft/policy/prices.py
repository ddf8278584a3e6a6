"""What a GPU costs an hour, with the day it was seen: defaults that every user should set right.

On-demand list prices per GPU, gathered from public price pages of clouds and surveys. They differ two to four times
between vendors and change by the month: ``--price`` or the user's own file (see ``adaptft.cli.price_file``) wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from adaptft.facts import Gpu
from adaptft.policy.gpus import known_gpu


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for one hour; ``date`` is when it was seen (year-month, or a day)."""

    usd_per_hour: float
    date: str
    source: str

    @property
    def in_words(self) -> str:
        """``Modal list price, seen 2026-05-07``."""
        return f"{self.source}, seen {self.date}" if self.date else self.source


Prices = Mapping[str, Price]
"""By the key of the table of GPUs."""

ANY_GPU = "*"
"""The key of a price that holds for every GPU: what ``--price 2.95`` means."""


def price_key(gpu: Gpu) -> str:
    """``a100-80g``, ``a100-80g:mig-3g.40gb`` for a slice of one; a board that the table does not know by its name."""
    row = known_gpu(gpu)
    board = row.key if row else gpu.mig.parent if gpu.mig else gpu.name
    return f"{board}:mig-{gpu.mig.profile}" if gpu.mig else board


def price_of(gpu: Gpu, prices: Prices) -> Price | None:
    """The price of ``gpu``, None where nobody named one (a slice costs what it costs, not a share of its board)."""
    return prices.get(ANY_GPU) or prices.get(price_key(gpu))


_MATRIX = "list price in techbytes.app's survey"
_RUNPOD = "RunPod in deploybase.ai's survey"
PRICES: dict[str, Price] = {
    "v100-16g": Price(0.55, "2025", "Lambda's older catalogue"),
    "v100-pcie-16g": Price(0.55, "2025", "Lambda's older catalogue"),
    "t4": Price(0.59, "2026-05-07", f"Modal, {_MATRIX}"),
    "a10": Price(0.86, "2026-05-07", f"Lambda, {_MATRIX}"),
    "a10g": Price(1.01, "2026", "AWS g5.xlarge on demand, from memory"),
    "a40": Price(1.22, "2026", "RunPod serverless"),
    "a6000": Price(0.80, "2025", "Lambda's older catalogue"),
    "3090": Price(0.22, "2026-03", _RUNPOD),
    "a100-pcie-40g": Price(1.48, "2026-05-07", f"Lambda, {_MATRIX}"),
    "a100-40g": Price(1.29, "2025", "Lambda's older catalogue"),
    "a100-pcie-80g": Price(1.64, "2026", "RunPod secure cloud"),
    "a100-80g": Price(1.89, "2026", "RunPod secure cloud; 0.80 to 3.00 elsewhere"),
    "l4": Price(0.80, "2026-05-07", f"Modal, {_MATRIX}"),
    "l40": Price(0.69, "2026-03", _RUNPOD),
    "l40s": Price(1.95, "2026-05-07", f"Modal, {_MATRIX}"),
    "4090": Price(0.34, "2026-03", _RUNPOD),
    "5090": Price(0.69, "2026-03", _RUNPOD),
    "pro6000": Price(0.89, "2026-03", _RUNPOD),
    "pro6000-server": Price(0.89, "2026-03", _RUNPOD),
    "h100-pcie": Price(2.86, "2026-05-07", f"Lambda, {_MATRIX}"),
    "h100": Price(3.78, "2026-05-07", f"Lambda, {_MATRIX}; market median 2.95"),
    "h200": Price(3.59, "2026-03", _RUNPOD),
    "gh200": Price(1.50, "2025", "Lambda's older log"),
    "b200": Price(5.98, "2026-03", _RUNPOD),
    "b300": Price(7.89, "2026-09", "RunPod"),
}
