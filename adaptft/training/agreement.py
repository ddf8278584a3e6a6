"""What must be the same on every machine and rank, compared before it can do harm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.errors import MachineError, TrainingError
from adaptft.training.identity import RunIdentity, differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What a rank is about to do: which run, from which checkpoint (None: anew), on which host."""

    identity: RunIdentity
    checkpoint: str | None
    host: str


def require_same_beginning(identity: RunIdentity, checkpoint: Path | None) -> None:
    """Have all ranks look at each other's rows, model and checkpoint; every rank raises the same.

    Folders of the same name on different machines need not hold the same.

    Raises:
        TrainingError: ranks would train on other rows, another model, or from another step.
    """
    import socket

    from torch import distributed

    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    mine = Beginning(
        identity=identity, checkpoint=None if checkpoint is None else checkpoint.name, host=socket.gethostname()
    )
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    compare_beginnings(gathered)


def compare_beginnings(ranks: list[Beginning]) -> None:
    """Raises ``TrainingError`` where the ranks, in their order, do not begin alike."""
    first = ranks[0]
    for rank, other in enumerate(ranks):
        if other.checkpoint != first.checkpoint:
            here, there = (name or "no checkpoint" for name in (first.checkpoint, other.checkpoint))
            raise TrainingError(
                f"Rank 0 ({first.host}) would go on from {here}, and rank {rank} ({other.host}) from {there}.",
                fix="Use an --output_dir that all machines share, or copy the checkpoint to the same place on each.",
            )
        if names := differences(first.identity, other.identity):
            raise TrainingError(
                f"Rank {rank} ({other.host}) has another {' and '.join(map(_WORDS.get, names, names))} than rank 0 "
                f"({first.host}).",
                fix="Have the same model and data files on every machine, or name a folder that all of them share.",
            )


_WORDS = {"rows_hash": "data set", "dataset": "data set", "model_fingerprint": "model", "max_steps": "number of steps"}


def require_same_versions(first: dict[str, str], here: dict[str, str], first_name: str) -> None:
    """Refuse packages that shape a run's numbers and are other ones on the first machine.

    Raises:
        MachineError: names them, with the line that installs the first machine's.
    """
    other = [name for name in first | here if first.get(name) != here.get(name)]
    if other:
        said = "; ".join(f"{n} {first.get(n, 'missing')} there, {here.get(n, 'missing')} here" for n in other)
        wanted = " ".join(f"{name}=={first[name]}" for name in other if name in first)
        raise MachineError(
            f"{first_name} has other versions than this machine: {said}.",
            fix=f"Install the same on every machine: pip install {wanted}" if wanted else "Uninstall them here.",
        )
