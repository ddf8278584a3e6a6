"""Keys and JSON values that all machines of a run see; the first machine's process holds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from adaptft.errors import AdaptftError, TrainingError
from adaptft.training.rendezvous import ANSWER_SECONDS

T = TypeVar("T")
AGAIN = "Start the same command again on every machine with --resume_from_checkpoint auto."


class Table:
    """torch's TCPStore in the words of a meeting; where it does not answer, the first machine's process is gone.

    Every method raises ``TrainingError`` for that, but ``attempt``.
    """

    def __init__(self, store: Any, endpoint: str) -> None:
        self._store, self.endpoint = store, endpoint
        self._questions: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._is_lost = False
        Thread(target=self._answer, name="adaptft-table", daemon=True).start()

    def set(self, key: str, value: Any) -> None:
        """Write ``value``, which JSON can hold."""
        self._asked(lambda: self._store.set(key, json.dumps(value)))

    def set_first(self, key: str, value: Any) -> None:
        """Write ``value`` where nobody has written one."""
        self._asked(lambda: self._store.compare_set(key, "", json.dumps(value)))

    def has(self, key: str) -> bool:
        """True where somebody has written ``key``."""
        return bool(self._asked(lambda: self._store.check([key])))

    def get(self, key: str) -> Any:
        """The value of a key that is there."""
        return json.loads(self._asked(lambda: self._store.get(key)))

    def delete(self, key: str) -> None:
        """Forget ``key``, whether it was there or not."""
        self._asked(lambda: self._store.delete_key(key))

    def count(self, key: str) -> int:
        """A counter as it stands; 0 where nobody counts."""
        return int(self._asked(lambda: self._store.add(key, 0)))

    def attempt(self, question: Callable[[], T]) -> T | None:
        """Last words, which must not hide why they are said: None where nobody hears them any more."""
        try:
            return question()
        except AdaptftError:
            return None

    def is_gone(self) -> TrainingError:
        """What to say where the table does not answer."""
        return TrainingError(f"The first machine ({self.endpoint}) is gone, and the run with it.", fix=AGAIN)

    def _asked(self, question: Callable[[], T]) -> T:
        """The answer of the store; another thread waits for it, since where a network is cut torch waits for ever."""
        if self._is_lost:
            raise self.is_gone()
        answer: Future[T] = Future()
        self._questions.put((question, answer))
        try:
            return answer.result(ANSWER_SECONDS)
        except (RuntimeError, TimeoutError) as cause:  # RuntimeError: torch's DistError and its kinds
            self._is_lost = True
            raise self.is_gone() from cause

    def _answer(self) -> None:
        while True:
            question, answer = self._questions.get()
            try:
                answer.set_result(question())
            except RuntimeError as cause:
                answer.set_exception(cause)
