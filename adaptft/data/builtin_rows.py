"""The data set that comes with adaptft: a part of GSM8K (MIT licence, beside the rows)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent / "builtin"


def builtin(part: Literal["train", "test"]) -> Path:
    """The file of school arithmetic in words: 800 rows to train on, 100 others to test on."""
    return FOLDER / f"gsm8k_{part}.jsonl"
