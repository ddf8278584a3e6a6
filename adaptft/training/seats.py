"""Which of the machines of a run this one is: by options, else by what Slurm or Kubeflow set. No torch is needed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adaptft.errors import RequestError
from adaptft.requests import TrainRequest

PORT = 29500
"""torchrun's and accelerate's default, too."""
SCHEDULERS: dict[str, tuple[str, ...]] = {
    "node_rank": ("PET_NODE_RANK", "SLURM_NODEID"),
    "master_addr": ("PET_MASTER_ADDR", "MASTER_ADDR"),
    "master_port": ("PET_MASTER_PORT", "MASTER_PORT"),
}
"""Option -> variables that stand for it where it is not given; the first one that is set counts."""
MACHINES = ("SLURM_STEP_NUM_NODES", "PET_NNODES")
"""On how many machines a scheduler started this command."""
FIRST_OF_SLURM = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place of this machine: ``rank`` of ``nodes``, and where the first of them listens."""

    nodes: int
    rank: int
    address: str
    port: int

    @property
    def is_first(self) -> bool:
        """True for the machine that plans, keeps the meeting and writes the result."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"Machine {self.rank} of {self.nodes}"

    @property
    def endpoint(self) -> str:
        """``HOST:PORT``, with brackets around an IPv6 address."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def find_seat(request: TrainRequest, environment: Mapping[str, str]) -> Seat | None:
    """This machine's place, None for a run of one machine.

    Raises:
        RequestError: the options contradict each other, one is missing, or another launcher started this process.
    """
    _refuse_launchers(request, environment)
    nodes = request.nnodes or 1
    if nodes == 1:
        _refuse_alone(request)
        return None
    rank = _number("node_rank", request.node_rank, environment)
    if rank is None:
        raise RequestError(
            f"nnodes is {nodes}, and nothing says which of the machines this one is.",
            fix="Add --node_rank 0 on the machine that --master_addr names, and --node_rank 1 and so on on the others.",
        )
    if rank >= nodes:
        raise RequestError(
            f"node_rank {rank} is beyond the {nodes} machines of the run.",
            fix=f"Machines count from 0: use --node_rank 0 to {nodes - 1}, or a larger --nnodes.",
        )
    address = request.master_addr or _variable("master_addr", environment)
    if not address:
        raise RequestError(
            f"nnodes is {nodes}, and nothing says where the first machine is.", fix=_how_to_name(environment)
        )
    port = _number("master_port", request.master_port, environment)
    return Seat(nodes=nodes, rank=rank, address=address, port=PORT if port is None else port)


def _how_to_name(environment: Mapping[str, str]) -> str:
    if "SLURM_JOB_NODELIST" in environment:
        return f'Add --master_addr "$({FIRST_OF_SLURM})".'
    return "Add --master_addr HOST, the same on every machine: what `hostname -f` prints on the first one."


def _refuse_launchers(request: TrainRequest, environment: Mapping[str, str]) -> None:
    """adaptft starts the ranks itself, once a machine.

    Raises:
        RequestError: torchrun or srun started this process for each rank, or on machines that nnodes does not count.
    """
    if "TORCHELASTIC_RUN_ID" in environment and "LOCAL_RANK" in environment:
        raise RequestError(
            f"torchrun started this process (rank {environment.get('RANK', '?')}), and adaptft starts torchrun itself.",
            fix="Run adaptft train once on each machine, without torchrun: "
            "--nnodes N --node_rank K --master_addr HOST.",
        )
    tasks, machines = (_whole(environment.get(f"SLURM_STEP_NUM_{what}")) for what in ("TASKS", "NODES"))
    if tasks is not None and machines is not None and tasks > machines:
        raise RequestError(
            f"srun started {tasks} processes on {machines} machine{'s' * (machines > 1)}, and adaptft starts the ranks "
            "itself.",
            fix="Start one a machine: srun --ntasks-per-node=1.",
        )
    for name in MACHINES:
        found = _whole(environment.get(name))
        if found is not None and found > 1 and found != request.nnodes:
            said = "nnodes is not set" if request.nnodes is None else f"nnodes is {request.nnodes}"
            raise RequestError(
                f"This command was started on {found} machines ({name}), and {said}.",
                fix=f"Add --nnodes {found}, or start it on one machine.",
            )


def _refuse_alone(request: TrainRequest) -> None:
    """Options of several machines mean nothing on one.

    Raises:
        RequestError: one of them is given.
    """
    names = ("node_rank", "master_addr", "master_port", "max_restarts")
    given = {name: value for name in names if (value := getattr(request, name))}
    if given:
        words = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items())
        raise RequestError(f"{words}: for several machines, and nnodes is not.", fix="Add --nnodes N, or leave it out.")


def _number(option: str, given: int | None, environment: Mapping[str, str]) -> int | None:
    return given if given is not None else _whole(_variable(option, environment))


def _variable(option: str, environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in SCHEDULERS[option] if environment.get(name)), None)


def _whole(text: Any) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None
