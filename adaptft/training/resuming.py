"""Where a run begins: anew, from a checkpoint, from the weights of one, or again after it went back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.requests import TrainRequest
from adaptft.training.checkpoints import find_checkpoint, newest_whole, read_seal, step_of
from adaptft.training.identity import RunIdentity, require_same_run, require_same_weights
from adaptft.training.incidents import Journal, read_state
from adaptft.training.numbers import MOST_ROLLBACKS, RATE_STEP, RollBack


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """``checkpoint`` is gone on from with all its state, or ``weights`` are begun with; neither: anew."""

    checkpoint: Path | None = None
    weights: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_given(self) -> bool:
        """True where the run begins with what another one left."""
        return self.checkpoint is not None or self.weights is not None


def starting_point(request: TrainRequest, output_dir: Path) -> Start:
    """What the request asks for.

    Raises:
        OutputError: the checkpoint asked for does not exist or is damaged.
    """
    found, notes = find_checkpoint(request, output_dir)
    if request.resume_only_model:
        return Start(weights=found, notes=notes)
    return Start(checkpoint=found, notes=notes)


def accept(start: Start, now: RunIdentity, request: TrainRequest, *, is_told: bool) -> Journal:
    """The journal that the run goes on with, once its checkpoint is seen to be of this run.

    Raises:
        RequestError: it is of another run; everything that differs is named.
    """
    if start.weights is not None:
        require_same_weights(start.weights, read_seal(start.weights).run, now)
    if start.checkpoint is None:
        return Journal(is_told=is_told)
    seal = read_seal(start.checkpoint)
    journal = Journal(read_state(start.checkpoint), is_told=is_told)
    changed = require_same_run(start.checkpoint, seal.run, now, anyway=request.resume_anyway)
    if changed:
        journal.add("gone_on_with_changes", seal.step, f"Gone on although {changed}.")
    return journal


def go_back(trainer: Any, output_dir: Path, cause: RollBack) -> Start:
    """Where the run begins again after ``cause``, with a lower learning rate; its journal is changed.

    A checkpoint is sound once the step behind it has been: the newest such one, or else the newest of all.

    Raises:
        RollBack: it has gone back often enough; the diagnosis.
    """
    journal: Journal = trainer.journal
    if journal.state.rollbacks >= MOST_ROLLBACKS:
        raise cause
    back = newest_whole(output_dir, up_to=cause.good_step - 1)[0] or newest_whole(output_dir)[0]
    step = step_of(back) if back else 0
    factor = journal.state.rate_factor * RATE_STEP
    journal.change(rate_factor=factor, rollbacks=journal.state.rollbacks + 1)
    said = f"{cause.problem} Went back to {back.name if back else 'the beginning'}; learning rate x {factor:g}."
    journal.add("rolled_back", trainer.state.global_step, said)
    if trainer.args.should_save:
        trainer.keeper.drop_after(step)
    trainer.accelerator.wait_for_everyone()
    return Start(checkpoint=back)
