"""All that is wrong with a request, in one error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from adaptft.errors import RequestError


@dataclass(slots=True)
class Faults:
    """Errors met so far: who pastes a whole config wants to know everything that cannot be taken from it."""

    errors: list[RequestError] = field(default_factory=list)

    def add(self, error: RequestError) -> None:
        """One more."""
        self.errors.append(error)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """A block whose error is kept, and raised with the others."""
        try:
            yield
        except RequestError as error:
            self.add(error)

    def raise_any(self) -> None:
        """Raise what was met; several become one error of numbered problems and numbered ways out.

        Raises:
            RequestError: there is any.
        """
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        problems = "; ".join(f"[{n}] {error.problem.rstrip('.')}" for n, error in enumerate(self.errors, 1))
        fixes: dict[str, list[int]] = {}
        for n, error in enumerate(self.errors, 1):
            fixes.setdefault(error.fix, []).append(n)
        ways = " ".join(f"[{', '.join(map(str, numbers))}] {fix}" for fix, numbers in fixes.items())
        raise RequestError(f"{len(self.errors)} settings cannot be taken: {problems}.", fix=ways)
