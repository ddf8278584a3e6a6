"""Which machines ``adaptft plan`` is asked about: this one, a recorded one, or GPUs by name or from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaptft.errors import RequestError
from adaptft.facts import Machine
from adaptft.requests import TrainRequest

if TYPE_CHECKING:
    from adaptft.policy.assumed import Joined
    from adaptft.policy.gpu_table import GpuModel

COUNTS = (1, 2, 4, 8)
"""How many GPUs are tried where a budget or a deadline is given and no number."""
HERE, ALL = "here", "all"
GPU_FILE_FIX = (
    "Write a JSON object like the rows of adaptft.policy.gpu_table: key, names, compute_capability, sm_count, "
    "memory_gib, memory_gb_per_second, and fp32_ to fp8_tflops."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The options that name machines, as they were given."""

    machine_file: Path | None = None
    gpu: str | None = None
    gpu_file: Path | None = None
    gpus: int | None = None
    joined: Joined | None = None
    compare: str | None = None

    def check(self) -> None:
        """Refuse two names for one machine.

        Raises:
            RequestError: they contradict each other.
        """
        naming = {
            "--gpu": self.gpu, "--gpu-file": self.gpu_file, "--machine": self.machine_file, "--compare": self.compare,
        }  # fmt: skip
        given = [option for option, value in naming.items() if value is not None]
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} both name a machine.", fix="Leave one of them out.")
        named = self.gpu or self.gpu_file or self.compare
        if self.gpus is not None and not named:
            raise RequestError(
                f"--gpus {self.gpus} does not say of which.", fix=f"Add --gpu NAME, or write --num_gpus {self.gpus}."
            )
        if self.joined and not named:
            raise RequestError(
                f"--{self.joined} is for GPUs that are not here; links of this machine are probed.",
                fix="Add --gpu NAME --gpus NUMBER, or leave it out.",
            )

    def one(self, request: TrainRequest) -> Machine:
        """The machine to plan for.

        Raises:
            AdaptftError: it cannot be read, or there is no such GPU.
        """
        from adaptft.cli.planning import find_machine
        from adaptft.policy.assumed import machine_of, machine_with

        if self.gpu_file is not None:
            return machine_of(read_gpu(self.gpu_file), self.gpus, self.joined)
        if self.gpu is not None:
            return machine_with(self.gpu, self.gpus, self.joined)
        return find_machine(self.machine_file, request)

    def several(self, request: TrainRequest, *, counts: tuple[int, ...]) -> dict[str, Machine]:
        """Machines to compare, by the name in the table; each GPU without a number ``counts`` times.

        Raises:
            AdaptftError: there is no such GPU.
        """
        file = self.gpu_file or self.machine_file
        if file is not None:
            return {file.name: self.one(request)}
        names = _names(self.compare or self.gpu or ALL)
        return dict(found for name in names for found in self._machines(name, request, counts))

    def _machines(self, name: str, request: TrainRequest, counts: tuple[int, ...]) -> list[tuple[str, Machine]]:
        from adaptft.policy.assumed import machine_with, says_how_many

        if name == HERE:
            return [(name, Where().one(request))]
        if self.gpus is not None or says_how_many(name) or ":" in name:
            words = f"{self.gpus} x {name}" if (self.gpus or 1) > 1 else name
            return [(words, machine_with(name, self.gpus, self.joined))]
        return [
            (f"{count} x {name}" if count > 1 else name, machine_with(name, count, self.joined)) for count in counts
        ]


def _names(compare: str) -> list[str]:
    """Raises ``RequestError`` where none is named."""
    from adaptft.policy.prices import PRICES

    names = [name.strip() for name in compare.split(",") if name.strip()]
    if not names:
        raise RequestError("--compare names no GPU.", fix="Write it like --compare a10,a100-80g,8xh100")
    return list(dict.fromkeys(key for name in names for key in (PRICES if name == ALL else (name,))))


def read_gpu(path: Path) -> GpuModel:
    """The GPU that ``path`` describes, as a row of the table.

    Raises:
        RequestError: the file cannot be read, or describes no GPU.
    """
    from adaptft.policy.gpu_table import GpuModel
    from adaptft.records import read_json

    row = read_json(GpuModel, path, error=RequestError, what="GPU", fix=GPU_FILE_FIX)
    numbers = ("sm_count", "memory_gib", "memory_gb_per_second", "fp32_tflops")
    absurd = [f"{name} {getattr(row, name):g}" for name in numbers if getattr(row, name) <= 0]
    if not row.names or absurd:
        raise RequestError(f"{path} describes no GPU: {', '.join(absurd) or 'it has no name'}.", fix=GPU_FILE_FIX)
    return row
