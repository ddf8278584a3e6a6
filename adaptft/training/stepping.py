"""Forward and backward of micro-batches that goes on in smaller parts where memory runs out.

A backward pass that breaks off has added a part of its gradients already. So what is redone is the whole accumulation
window up to there, from gradients of zero and from the random state it began with: the step's loss and gradients are
those of the plan, and no copy of the gradients is ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from torch import Tensor

from adaptft.errors import TrainingError
from adaptft.training import numerics, parts
from adaptft.training.incidents import Journal
from adaptft.training.parts import Batch

Field = Literal["part_tokens", "eval_part_tokens"]


class Run(Protocol):
    """Computes a part; ``is_last`` in what is computed now, so that ranks may exchange gradients behind it."""

    def __call__(self, part: Batch, *, is_last: bool) -> Tensor:
        """The loss of ``part``, detached."""


class Steps:
    """Takes the micro-batches of one window after the other; the size of a part is kept in the journal.

    Args:
        field: which of the journal's limits is used.
        explain: the error for a document that does not fit alone, as it names the way out.
        has_dropout: the random state has to be kept for doing a window again.
        exchanges: true where a part (the last one of now, or another) exchanges weights or gradients with other
            ranks: that cannot be done again by one rank alone.
    """

    def __init__(
        self, journal: Journal, field: Field, *, explain: Callable[[], TrainingError], has_dropout: bool = False,
        exchanges: Callable[[bool], bool] = lambda is_last: False,
    ) -> None:  # fmt: skip
        self._journal, self._field, self._explain = journal, field, explain
        self._has_dropout, self._exchanges = has_dropout, exchanges
        self._taken: list[Batch] = []
        self._randomness: numerics.RandomState | None = None
        self.step = 0

    def begin(self, step: int) -> None:
        """A new window begins, for optimizer step ``step``, with gradients of zero."""
        self._taken, self.step = [], step
        self._randomness = numerics.random_state() if self._has_dropout else None

    @property
    def window(self) -> list[Batch]:
        """The micro-batches taken in this window."""
        return self._taken

    def take(self, batch: Batch, run: Run, clear: Callable[[], None]) -> Tensor:
        """The loss of ``batch``, in so many parts as memory demands.

        Args:
            clear: sets the gradients of the window to zero.

        Raises:
            TrainingError: a single document does not fit.
        """
        self._taken.append(batch)
        loss = self._attempt([batch], run)
        while loss is None:
            clear_device_cache(garbage_collection=True)
            clear()
            if self._randomness is not None:
                numerics.set_random_state(self._randomness)
            loss = self._attempt(self._taken, run)
        return loss

    def _attempt(self, batches: list[Batch], run: Run) -> Tensor | None:
        """The loss of the last of ``batches``, all computed; None where memory ran out, with a smaller limit then."""
        loss: Tensor | None = None
        for number, batch in enumerate(batches):
            pieces = parts.within(batch, getattr(self._journal.state, self._field))
            losses: list[Tensor] = []
            for index, piece in enumerate(pieces):
                is_last = number == len(batches) - 1 and index == len(pieces) - 1
                found = self._part(piece, run, is_last)
                if found is None:
                    self._shrink(piece)
                    return None
                losses.append(found)
            loss = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
        return loss

    def _part(self, piece: Batch, run: Run, is_last: bool) -> Tensor | None:
        """None where memory ran out; the error, which holds on to all activations, is gone by then."""
        try:
            return run(piece, is_last=is_last)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or self._exchanges(is_last):
                raise
            return None

    def _shrink(self, piece: Batch) -> None:
        two = parts.halves(piece)
        error = self._explain()
        if two is None:
            raise error
        most = max(map(parts.num_tokens, two))
        self._journal.change(**{self._field: most})
        what = "training" if self._field == "part_tokens" else "evaluation"
        self._journal.add(
            "out_of_memory",
            self.step,
            f"{error.problem} {parts.num_tokens(piece)} tokens at a time were too many: {what} goes on with at most "
            f"{most}, in more parts with the same global batch.",
        )


def is_out_of_memory(error: BaseException) -> bool:
    """True for what torch, numpy and Python raise when memory of the GPU or the host runs out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and should_reduce_batch_size(error)
    )
