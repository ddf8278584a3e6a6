"""Folders of the user's own: what adaptft keeps between runs, and what a user tells it once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """A folder or file under ``ADAPTFT_HOME`` (default: ``~/.cache/adaptft``); it is not created."""
    home = os.environ.get("ADAPTFT_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "adaptft").joinpath(*parts)


def settings_folder(*parts: str) -> Path:
    """A folder or file under ``adaptft`` in ``XDG_CONFIG_HOME`` (default: ``~/.config``); it is not created."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").joinpath("adaptft", *parts)
