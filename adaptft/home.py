"""Folders of the user's own: what adaptft keeps between runs, and what a user tells it once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """A folder under ``$ADAPTFT_HOME``, or under ``adaptft`` in the user's cache folder; it is not created.

    ``ADAPTFT_CACHE``, the older name, counts where ``ADAPTFT_HOME`` is not set.
    """
    named = os.environ.get("ADAPTFT_HOME") or os.environ.get("ADAPTFT_CACHE")
    home = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "adaptft"
    return home.expanduser().joinpath(*parts)


def settings_folder(*parts: str) -> Path:
    """A folder or file under ``adaptft`` in ``XDG_CONFIG_HOME`` (default: ``~/.config``); it is not created."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").joinpath("adaptft", *parts)
