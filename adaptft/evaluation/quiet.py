"""Keeps what other libraries print while they work in one log file, and shows it only where something fails."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_LINES_SHOWN = 20


@contextlib.contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Send standard output, standard error, loguru, ``logging`` and warnings to ``log`` inside the block.

    Libraries that set up their logging on import (llm-compressor does) have to be imported inside it. An
    exception that leaves the block gets the end of the log as a note, so that nothing is lost.
    """
    with log.open("a", encoding="utf-8") as stream:
        stdout, stderr = sys.stdout, sys.stderr
        try:
            with (
                contextlib.redirect_stdout(stream),
                contextlib.redirect_stderr(stream),
                warnings.catch_warnings(),
            ):
                _move_handlers({sys.__stdout__, sys.__stderr__, stdout, stderr}, stream)
                _point_loguru_at(stream, "INFO")
                yield
        except Exception as cause:
            stream.flush()
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
            cause.add_note("The log ended with:\n" + "\n".join(tail))
            raise
        finally:
            _move_handlers({stream}, stderr)
            _point_loguru_at(stderr, "ERROR")


def _move_handlers(streams: set[TextIO | None], target: TextIO) -> None:
    """Every logging handler that writes to one of ``streams`` writes to ``target`` from here on.

    Libraries bind theirs to the standard error of their import, which redirecting does not reach.
    """
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in streams:
            handler.setStream(target)


def _point_loguru_at(stream: TextIO, level: str) -> None:
    """Where a library has brought loguru in, ``stream`` becomes its only sink."""
    if "loguru" in sys.modules:
        from loguru import logger

        logger.remove()
        logger.add(stream, level=level, format="{level} {message}")
