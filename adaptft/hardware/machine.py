"""The probe: every source asked once, put together as a ``Machine``."""

from __future__ import annotations

import os
from pathlib import Path

from adaptft.facts import Machine
from adaptft.hardware.cgroups import read_limits
from adaptft.hardware.foreign import read_foreign
from adaptft.hardware.gpus import choose_gpus
from adaptft.hardware.host import read_cpu, read_disk, read_memory
from adaptft.hardware.software import read_software, read_torch_cuda
from adaptft.hardware.sources import read_nvidia


def probe(path: Path | None = None) -> Machine:
    """This machine as a plan needs it; ``path`` is where results will lie (its disk is told), default here.

    Never fails for a tool that is missing, hangs or prints rubbish: ``notes`` says what was not learned and why.
    """
    root, notes = Path("/"), list[str]()
    limits = read_limits(root, notes)
    memory = read_memory(limits, notes)
    reading = read_nvidia(root, notes, torch_cuda=read_torch_cuda())
    chosen = choose_gpus(reading, os.environ, memory)
    cpu = read_cpu(limits, notes)
    disk = read_disk(path or Path.cwd(), notes)
    unsupported = read_foreign(notes)
    return Machine(
        gpus=chosen.gpus,
        links=chosen.links,
        cpu=cpu,
        memory=memory,
        disk=disk,
        software=read_software(driver=reading.driver, driver_cuda=reading.driver_cuda),
        unsupported=unsupported,
        notes=(*notes, *chosen.notes),
    )
