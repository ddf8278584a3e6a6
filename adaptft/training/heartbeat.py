"""A thread that shows that this machine lives, and sees which of the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 20.0
"""A machine that was not heard of for so long is gone; a collective would wait for it for ten minutes."""


class Heartbeat(threading.Thread):
    """Counts up ``beat/RANK`` in the store once a second, and looks whether the counters of ``others`` move.

    ``store`` must be a connection of its own: calls of one connection wait for each other.
    """

    def __init__(self, store: Any, rank: int, others: Iterable[int]) -> None:
        super().__init__(name="adaptft-heartbeat", daemon=True)
        self._store, self._rank, self._ended = store, rank, threading.Event()
        self._heard: dict[int, tuple[int, float]] = {other: (0, time.monotonic()) for other in others}
        self._has_failed, self._answered = False, time.monotonic()

    def run(self) -> None:
        """Until ``end``, or until the store is gone."""
        while not self._ended.is_set():
            try:
                self._store.add(beat_key(self._rank), 1)
                for other in self._heard:
                    self._listen(other)
            except RuntimeError:  # torch's DistError and its kinds
                self._has_failed = not self._ended.is_set()
                return
            self._answered = time.monotonic()
            self._ended.wait(BEAT_SECONDS)

    def _listen(self, other: int) -> None:
        count = self._store.add(beat_key(other), 0)
        if count != self._heard[other][0]:
            self._heard[other] = (count, time.monotonic())

    @property
    def is_cut_off(self) -> bool:
        """True where the store no longer answers: the first machine, or the way to it, is gone."""
        is_silent = time.monotonic() - self._answered > SILENCE_SECONDS
        return self._has_failed or (self._rank > 0 and is_silent)

    def silence(self, other: int) -> float:
        """Seconds since ``other`` was last heard of."""
        return time.monotonic() - self._heard[other][1]

    def silent(self) -> tuple[int, ...]:
        """The machines that are gone."""
        return tuple(other for other in self._heard if self.silence(other) > SILENCE_SECONDS)

    def end(self) -> None:
        """Stop beating, so that nobody takes this machine for living."""
        self._ended.set()
        self.join(2 * BEAT_SECONDS)


def beat_key(rank: int) -> str:
    """The counter of machine ``rank``."""
    return f"beat/{rank}"
