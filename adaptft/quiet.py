"""What other libraries print: bars and advertisements are kept off the terminal, warnings and errors are not.

``no_bars`` is for all that loads or runs a model: compressed ones are unpacked only when they first run.
``printing_to`` keeps all that is printed in one log file, and shows it only where something fails.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

_LINES_SHOWN = 20
_ADVERTISED = "from kernels-community"
_ADVERTISERS = ("bitsandbytes.backends.cpu.ops",)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return _ADVERTISED not in str(record.msg)


def advertisements() -> None:
    """Leave out what libraries say at their import of packages that would make them faster elsewhere.

    bitsandbytes names a kernel for inference on CPUs, which adaptft does not use. Nothing is imported for this.
    """
    for name in _ADVERTISERS:
        logging.getLogger(name).addFilter(_is_no_advertisement)


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """No progress bars of libraries inside the block, also where they ask for them; warnings come through."""
    from tqdm.std import tqdm

    advertisements()
    start = tqdm.__init__

    @functools.wraps(start)
    def start_disabled(bar: Any, *args: Any, **options: Any) -> None:
        start(bar, *args, **(options | {"disable": True}))

    tqdm.__init__ = start_disabled
    try:
        yield
    finally:
        tqdm.__init__ = start


def libraries() -> None:
    """For a training run: no bars of transformers and none of its notices; ours say the same once."""
    advertisements()
    from transformers.utils import logging as transformers_logging

    # transformers knows the older of two names of a switch that every torch we support takes
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


@contextlib.contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Send standard output, standard error, loguru, ``logging`` and warnings to ``log`` inside the block.

    Libraries that set up their logging on import (llm-compressor does) have to be imported inside it. An
    exception that leaves the block gets the end of the log as a note, so that nothing is lost.
    """
    consoles = {sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr}
    with log.open("a", encoding="utf-8") as stream:
        try:
            with (
                contextlib.redirect_stdout(stream),
                contextlib.redirect_stderr(stream),
                _handlers_to(stream, consoles),
                warnings.catch_warnings(),
            ):
                _point_loguru_at(stream, "INFO")
                yield
        except Exception as cause:
            stream.flush()
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
            cause.add_note("The log ended with:\n" + "\n".join(tail))
            raise
        finally:
            _point_loguru_at(sys.stderr, "ERROR")


@contextlib.contextmanager
def _handlers_to(stream: TextIO, consoles: set[TextIO | None]) -> Iterator[None]:
    """Every logging handler that writes to one of ``consoles`` writes to ``stream`` inside the block.

    Libraries bind theirs to the standard error of their import, which redirecting does not reach. Those that
    came up inside the block are bound to ``stream``, and write to standard error afterwards.
    """
    moved = [(handler, handler.stream) for handler in _stream_handlers() if handler.stream in consoles]
    for handler, _ in moved:
        handler.setStream(stream)
    try:
        yield
    finally:
        for handler, console in moved:
            handler.setStream(console)
        for handler in _stream_handlers():
            if handler.stream is stream and sys.__stderr__ is not None:
                handler.setStream(sys.__stderr__)


def _stream_handlers() -> set[logging.StreamHandler[TextIO]]:
    """Handlers bound to a stream; those that look standard error up each time follow the redirection anyway."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    return {handler for handler in handlers if isinstance(handler, logging.StreamHandler) and "stream" in vars(handler)}


def _point_loguru_at(stream: TextIO, level: str) -> None:
    """Where a library has brought loguru in, ``stream`` becomes its only sink."""
    if "loguru" in sys.modules:
        from loguru import logger

        logger.remove()
        logger.add(stream, level=level, format="{level} {message}")
