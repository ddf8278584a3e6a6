"""The table of keys in which the machines of a run meet: torch's TCPStore, kept by the first machine's process.

torchrun's c10d rendezvous uses the same table, so that one port is enough to meet, and a torchrun that ends or starts
again takes nothing with it.
"""

from __future__ import annotations

import errno
import socket
import time
from datetime import timedelta
from typing import Any

from adaptft.errors import MachineError
from adaptft.training.seats import Seat
from adaptft.units import format_seconds

JOIN_SECONDS = 600.0
"""How long machines wait for each other before a run: images are pulled, and schedulers start one after another."""
ANSWER_SECONDS = 20.0
"""How long an answer of the table may take."""
KNOCK_SECONDS = 1.0


def open_store(seat: Seat, patience: float = JOIN_SECONDS) -> Any:
    """The table: made here on the first machine, joined on the others.

    Raises:
        MachineError: the port is taken, or the first machine cannot be reached for ``patience`` seconds.
    """
    return _keep(seat) if seat.is_first else _join(seat, patience)


def another_connection(seat: Seat) -> Any:
    """A second connection to the table, for another thread."""
    return _connect("127.0.0.1" if seat.is_first else seat.address, seat.port)


def _keep(seat: Seat) -> Any:
    """Listen on every interface; this machine itself goes through the loopback, whose name needs no DNS."""
    _require_free_port(seat.port)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    timeout = timedelta(seconds=ANSWER_SECONDS)
    return TCPStore("127.0.0.1", seat.port, is_master=True, wait_for_workers=False, timeout=timeout)


def _require_free_port(port: int) -> None:
    """Look before torch does, which warns at length.

    Raises:
        MachineError: somebody listens on it, or this user may not.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as cause:
            why = "is taken" if cause.errno == errno.EADDRINUSE else f"cannot be used ({cause.strerror})"
            raise MachineError(
                f"Port {port} of this machine {why}: the machines of the run cannot meet there.",
                fix="Give another one, the same on every machine: --master_port PORT; or end the run that holds it.",
            ) from cause


def _join(seat: Seat, patience: float) -> Any:
    deadline = time.monotonic() + patience
    while True:
        try:
            with socket.create_connection((seat.address, seat.port), timeout=ANSWER_SECONDS):
                break
        except OSError as cause:
            if time.monotonic() > deadline:
                raise _unreachable(seat, patience, cause) from cause
        time.sleep(KNOCK_SECONDS)
    try:
        return _connect(seat.address, seat.port)
    except RuntimeError as cause:  # torch's DistError and its kinds
        raise MachineError(
            f"What listens at {seat.endpoint} is no run of adaptft.",
            fix="Give the port of the first machine, the same on every machine: --master_port PORT.",
        ) from cause


def _connect(address: str, port: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=ANSWER_SECONDS))


def _unreachable(seat: Seat, patience: float, cause: OSError) -> MachineError:
    return MachineError(
        f"The first machine was not reached at {seat.endpoint} within {format_seconds(patience)}: "
        f"{cause.strerror or cause}.",
        fix="Start the same command there with --node_rank 0, and see that --master_addr is its name and that this "
        "machine may reach the port.",
    )


def interface_to(seat: Seat) -> str | None:
    """The network interface that leads to the first machine; None where none is found.

    Gloo otherwise takes the address that the host's own name stands for, which is 127.0.1.1 on Debian.
    """
    import psutil

    try:
        family, *_, target = socket.getaddrinfo(seat.address, seat.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    found = ((name, a.address.partition("%")[0]) for name, all_of in psutil.net_if_addrs().items() for a in all_of)
    return next((name for name, address in found if address == own), None)
