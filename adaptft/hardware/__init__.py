"""Reading the machine: ``probe`` asks the tools, ``read_machine`` reads what a probe wrote elsewhere."""

from __future__ import annotations

from adaptft.hardware.ceilings_file import with_ceilings
from adaptft.hardware.machine import probe
from adaptft.hardware.recorded import read_machine

__all__ = ["probe", "read_machine", "with_ceilings"]
