"""What went wrong in a run and what it learned from it; goes with every checkpoint and ends in the report."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.errors import OutputError
from adaptft.records import read_json, write_json
from adaptft.reports import Incident, IncidentKind

FILE_NAME = "recovery.json"
MOST = 100
"""Incidents kept: a run that stumbles in every step must not fill the disk with its story."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryState:
    """What a resumed run has to know of what its earlier processes met."""

    part_tokens: int | None = None
    """Most tokens of what is computed at a time in training, where memory has run out; None: a whole micro-batch."""
    eval_part_tokens: int | None = None
    rate_factor: float = 1.0
    """What the planned learning rate is multiplied by, after runs of numbers that are none."""
    rollbacks: int = 0
    overflows: int = 0
    incidents: tuple[Incident, ...] = ()


class Journal:
    """The current ``RecoveryState`` of a run; ``told`` tells the person at the terminal as well."""

    def __init__(self, state: RecoveryState | None = None, *, is_told: bool = True) -> None:
        self.state = state or RecoveryState()
        self._is_told = is_told

    def change(self, **fields: Any) -> None:
        """Replace some fields of the state."""
        self.state = dataclasses.replace(self.state, **fields)

    def add(self, kind: IncidentKind, step: int, said: str) -> None:
        """Keep an incident, and say it on stderr."""
        if len(self.state.incidents) < MOST:
            self.change(incidents=(*self.state.incidents, Incident(kind=kind, step=step, said=said)))
        if self._is_told:
            print(f"step {step}: {said}", file=sys.stderr)

    def add_once(self, kind: IncidentKind, step: int, said: str) -> None:
        """``add``, unless an earlier process of the run has said it."""
        if all(incident.said != said for incident in self.state.incidents):
            self.add(kind, step, said)

    def write(self, folder: Path) -> None:
        """Leave the state in a checkpoint."""
        write_json(folder / FILE_NAME, self.state)


def read_state(checkpoint: Path) -> RecoveryState:
    """The state in ``checkpoint``.

    Raises:
        OutputError: it is not there or cannot be understood.
    """
    return read_json(
        RecoveryState, checkpoint / FILE_NAME, error=OutputError, what="account of what went wrong",
        fix="Use --resume_from_checkpoint auto, which takes the newest whole one.",
    )  # fmt: skip
