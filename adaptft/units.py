"""Bytes, times and counts, for people."""

from __future__ import annotations

KiB = 1024
MiB = 1024**2
GiB = 1024**3


def format_bytes(num_bytes: float) -> str:
    """``15_300_000_000`` -> ``"14.2 GiB"``; below 1 GiB in MiB, below 1 MiB in KiB."""
    if abs(num_bytes) >= GiB:
        return f"{num_bytes / GiB:.1f} GiB"
    if abs(num_bytes) >= MiB:
        return f"{num_bytes / MiB:.0f} MiB"
    return f"{num_bytes / KiB:.0f} KiB"


def format_seconds(seconds: float) -> str:
    """``0.25`` -> ``"250 ms"``, ``75`` -> ``"1 min 15 s"``, ``7500`` -> ``"2 h 5 min"``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def format_count(count: float) -> str:
    """``7_615_616_512`` -> ``"7.62 B"``, ``1_941_504`` -> ``"1.94 M"``, ``950`` -> ``"950"``."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.2f} {letter}"
    return f"{count:.0f}"


def counted(count: int, noun: str) -> str:
    """``1 row``, ``1,200 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_number(value: float) -> str:
    """Whole numbers as they are, others with four digits that count."""
    return str(int(value)) if abs(value) < 1e9 and value == int(value) else f"{value:.4g}"
