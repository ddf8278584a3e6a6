"""What every tool's text has in common: terminal codes, units, and the many ways to say "not known"."""

from __future__ import annotations

import re

_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LONGEST_LINE = 1024
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_UNIT_BYTES = {
    "": 1024**2,
    "b": 1,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "kb": 1024,
    "mb": 1024**2,
    "gb": 1024**3,
}
_SWITCH = {"enabled": True, "disabled": False, "on": True, "off": False}


class UnreadableOutput(ValueError):
    """Text that is not what the tool prints when all is well; the probe turns it into a note."""


def clean(text: str) -> str:
    """``text`` without terminal codes, carriage returns and byte-order mark; tabs and blanks stay."""
    return _TERMINAL_CODE.sub("", text).replace("\r", "").replace("\ufeff", "").replace("\u00a0", " ")


def clean_lines(text: str) -> list[str]:
    """Lines of ``clean(text)``, each cut where no tool's tables reach, so that rubbish costs no time."""
    return [line[:_LONGEST_LINE].rstrip(" ") for line in clean(text).split("\n")]


def first_line(text: str) -> str:
    """The first line that says something, cut to a width that fits a note."""
    return next((line.strip()[:160] for line in clean_lines(text) if line.strip(" +-=|")), "nothing")


def known(cell: str) -> str | None:
    """The cell, or None for ``N/A``, ``[Not Supported]``, ``[Unknown Error]``, ``ERR!`` and the like."""
    value = cell.strip()
    if not value or value.startswith("[") or value.lower() in ("n/a", "not supported", "err!", "unknown error"):
        return None
    return value


def number(cell: str) -> float | None:
    """The number a cell begins with: ``"350.00 W"`` -> 350.0."""
    match = _NUMBER.match(known(cell) or "")
    return float(match.group()) if match else None


def whole(cell: str) -> int | None:
    """The whole number a cell begins with."""
    value = number(cell)
    return None if value is None else int(value)


def num_bytes(cell: str, unit: str = "") -> int | None:
    """``"81920 MiB"`` in bytes; a bare number is in ``unit``, or in MiB as with ``nounits``.

    nvidia-smi's "MB" of old drivers is MiB too.
    """
    value = number(cell)
    if value is None:
        return None
    own_unit = _NUMBER.sub("", cell, count=1).strip() or unit
    return int(value * _UNIT_BYTES.get(own_unit.lower(), 1024**2))


def switch(cell: str) -> bool | None:
    """``Enabled``/``Disabled`` as a bool, None where the hardware has no such switch (``N/A``)."""
    return _SWITCH.get(cell.strip().rstrip("*").strip().lower())


def capability(cell: str) -> tuple[int, int] | None:
    """``"8.9"`` -> ``(8, 9)``."""
    match = re.fullmatch(r"(\d+)\.(\d+)", cell.strip())
    return (int(match.group(1)), int(match.group(2))) if match else None
