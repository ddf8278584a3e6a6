"""`adaptft` in a process of its own, forked from one that has imported everything: it costs its steps, not its imports.

The process that is forked has computed nothing, so torch does not mind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "transformers.models.qwen2.modeling_qwen2", "adaptft.cli.planning", "adaptft.cli.run_page", "adaptft.cli.train",
        "adaptft.training.run",
    ]
)  # fmt: skip
SECONDS = 120.0


class Forked:
    """A running command: its process, what it writes to ``log``, and how to signal it.

    Args:
        folder: where it runs.
        waits_at: in this optimizer step a training run waits for a signal, however slow the machine is.
        gets: a signal, and the optimizer step in which a training run gets it from itself.
    """

    def __init__(
        self, words: list[str], log: Path, environment: dict[str, str], *, folder: Path, waits_at: int | None = None,
        gets: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.log = log
        arguments = (words, str(log), environment, str(folder), waits_at, gets)
        self.process = CONTEXT.Process(target=_run, args=arguments, daemon=False)
        self.process.start()

    @property
    def is_running(self) -> bool:
        return self.process.is_alive()

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def ended(self) -> tuple[int, list[str]]:
        """Its status (negative: the signal that killed it) and the lines of stderr."""
        self.process.join(SECONDS)
        if self.process.is_alive():
            self.process.kill()
            raise TimeoutError(self.log.read_text(errors="replace"))
        assert self.process.exitcode is not None
        return self.process.exitcode, self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()


def when(running: Forked, condition: Callable[[], Any]) -> None:
    """Wait until ``condition()`` holds or the command has ended."""
    deadline = time.monotonic() + SECONDS
    while not condition() and running.is_running and time.monotonic() < deadline:
        time.sleep(0.02)


def _run(
    words: list[str], log: str, environment: dict[str, str], folder: str, waits_at: int | None,
    gets: tuple[int, int] | None,
) -> None:  # fmt: skip
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    if waits_at is not None:
        _in_step(waits_at, _wait_for_a_signal)
    if gets is not None:
        _in_step(gets[1], lambda: os.kill(os.getpid(), gets[0]))
    from adaptft.cli import main

    main(words)


def _in_step(step: int, act: Callable[[], None]) -> None:
    from adaptft.training import progress, run

    class Acting(progress.ProgressReport):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            super().on_step_end(args, state, control, **more)
            if state.global_step == step:
                act()

    run.ProgressReport = Acting  # type: ignore[misc]


def _wait_for_a_signal() -> None:
    from adaptft.training import interruption

    deadline = time.monotonic() + SECONDS  # the test may be gone
    while not interruption.requested() and time.monotonic() < deadline:
        time.sleep(0.01)
