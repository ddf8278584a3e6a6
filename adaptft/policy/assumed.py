"""Machines that nobody probed: idle GPUs of one kind, joined as they are sold, in an ordinary host."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Literal

from adaptft.errors import RequestError
from adaptft.facts import Cpu, HostMemory, Link, Machine, Software
from adaptft.policy.ceilings import table_ceilings
from adaptft.policy.gpu_table import MEMORY, GpuModel
from adaptft.policy.gpus import gpu_of, row_named
from adaptft.policy.links import NVLINK_GB_PER_LINK, NVLINK_GENERATIONS
from adaptft.units import GiB

Joined = Literal["nvlink", "pcie"]
HOST_BYTES_PER_GPU = 64 * GiB
ASSUMED_PACKAGES = ("torch", "transformers", "triton", "bitsandbytes")
NOT_PROBED = "This machine was not probed: idle GPUs from the table, and an ordinary host, are assumed."
FROM_FILE = "This machine was not probed: idle GPUs as the file describes them, and an ordinary host, are assumed."
_COUNTED = re.compile(r"(\d+)\s*x\s*", re.IGNORECASE)


def machine_with(name: str, count: int | None = None, joined: Joined | None = None) -> Machine:
    """``count`` idle GPUs of one kind with everything installed; ``8x h100`` in ``name`` says how many, too.

    Args:
        name: as ``--gpu`` takes it: ``a10``, ``a100-80g:mig-3g.40gb``, ``8xh100``.
        joined: by what; default: NVLink between modules that always have it, else PCIe.

    Raises:
        RequestError: no such GPU, no positive count, two counts, or NVLink on cards that have none.
    """
    counted = _COUNTED.match(name)
    if counted:
        number = int(counted[1])
        if count is not None and count != number:
            raise RequestError(f"{name} are {number} GPUs, and --gpus says {count}.", fix="Leave one of them out.")
        name, count = name[counted.end() :], number
    board, _, profile = name.partition(":")
    return _machine(row_named(board), profile.lower().removeprefix("mig-") or None, count, joined)


def says_how_many(name: str) -> bool:
    """True for ``8xh100``."""
    return _COUNTED.match(name) is not None


def is_assumed(machine: Machine) -> bool:
    """True where nobody probed it: all that is named is paid for, and nothing says that it is idle."""
    return bool({NOT_PROBED, FROM_FILE} & set(machine.notes))


def machine_of(row: GpuModel, count: int | None = None, joined: Joined | None = None) -> Machine:
    """The same for a GPU that the table does not know; its rates come along as the machine's ceilings.

    Raises:
        RequestError: as ``machine_with``.
    """
    return _machine(row, None, count, joined, from_file=True)


def _machine(
    row: GpuModel, profile: str | None, count: int | None, joined: Joined | None, *, from_file: bool = False
) -> Machine:
    count = 1 if count is None else count
    if count < 1:
        raise RequestError(f"--gpus {count} is no number of GPUs.", fix="Name 1 or more.")
    host, cores = count * HOST_BYTES_PER_GPU, 8 * count
    notes = [FROM_FILE if from_file else NOT_PROBED]
    if row.source == MEMORY and not from_file:
        notes.append(f"The facts of {row.names[0]} are from {row.source}.")
    return Machine(
        gpus=tuple(gpu_of(row, profile=profile, index=index) for index in range(count)),
        cpu=Cpu(
            model_name="assumed",
            architecture="x86_64",
            logical_cores=cores,
            physical_cores=None,
            usable_cores=cores,
        ),
        memory=HostMemory(total_bytes=host, available_bytes=host),
        software=Software(python="3.12", packages=dict.fromkeys(ASSUMED_PACKAGES, "assumed")),
        links=() if profile else _links(row, count, joined),
        notes=tuple(notes),
        ceilings=table_ceilings(row) if from_file else None,
    )


def _links(row: GpuModel, count: int, joined: Joined | None) -> tuple[Link, ...]:
    """The same link between all pairs.

    Raises:
        RequestError: NVLink is asked for and the cards have none.
    """
    if joined == "nvlink" and not row.nvlink:
        raise RequestError(f"{row.names[0]} has no NVLink.", fix="Leave --nvlink out: these cards talk over PCIe.")
    pairs = list(combinations(range(count), 2))
    if joined == "nvlink" or (joined is None and row.nvlink == "nvlink"):
        generation = NVLINK_GENERATIONS[row.compute_capability[0]]
        width = max(1, round(row.nvlink_gb_per_second / NVLINK_GB_PER_LINK[generation]))
        return tuple(
            Link(a=a, b=b, path="NV", nvlink_width=width, nvlink_generation=generation, peer_access=True)
            for a, b in pairs
        )
    peers = "GeForce" not in row.names[0]  # the stock driver refuses peer copies between GeForce boards
    return tuple(Link(a=a, b=b, path="PHB", peer_access=peers) for a, b in pairs)
