"""Keeps what other libraries print while they work in one log file, and shows it only where something fails."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

from transformers.utils import logging as transformers_logging

_LINES_SHOWN = 20


@contextlib.contextmanager
def printing_to(log: Path) -> Iterator[None]:
    """Send standard output, standard error, loguru, ``logging`` and warnings to ``log`` inside the block.

    An exception that leaves the block gets the end of the log as a note, so that nothing is lost.
    """
    root = logging.getLogger()
    with log.open("a", encoding="utf-8") as stream, warnings.catch_warnings():
        warnings.simplefilter("default")
        handler = logging.StreamHandler(stream)
        previous = root.handlers[:]
        root.handlers = [handler]
        try:
            with (
                contextlib.redirect_stdout(stream),
                contextlib.redirect_stderr(stream),
                _transformers_to(stream_handler=handler),
                _loguru_to(log),
            ):
                yield
        except Exception as cause:
            stream.flush()
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
            cause.add_note("The log ended with:\n" + "\n".join(tail))
            raise
        finally:
            root.handlers = previous


@contextlib.contextmanager
def _transformers_to(stream_handler: logging.Handler) -> Iterator[None]:
    """transformers' loggers have a handler of their own, bound to the real standard error."""
    transformers_logging.disable_default_handler()
    transformers_logging.add_handler(stream_handler)
    try:
        yield
    finally:
        transformers_logging.remove_handler(stream_handler)
        transformers_logging.enable_default_handler()


@contextlib.contextmanager
def _loguru_to(log: Path) -> Iterator[None]:
    """llm-compressor replaces loguru's sinks with standard output as it is imported; here they are the file.

    Afterwards loguru writes warnings to standard error, which is its own default but for the level.
    """
    from loguru import logger

    import llmcompressor  # noqa: F401  its import sets the sinks: it has to come first

    logger.remove()
    sink = logger.add(log, level="INFO", format="{level} {message}")
    try:
        yield
    finally:
        logger.remove(sink)
        import sys

        logger.add(sys.stderr, level="ERROR")
