"""The NVIDIA boards as the driver's own library (NVML) tells them; package nvidia-ml-py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from adaptft.facts import LinkPath
from adaptft.hardware.boards import Board, BoardLink, Reading, Slice
from adaptft.hardware.topology import PathCode, nvlink_generation

# CUDA cores of an SM by compute capability (CUDA programming guide, "arithmetic instructions", fp32 lanes).
_CORES_PER_SM = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128, (6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64,
    (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 1): 128,
    (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
# nvmlGpuTopologyLevel_t -> code of nvidia-smi topo -m; level 0 is two chips of one board
_PATH_BY_LEVEL: dict[int, LinkPath] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_P2P_READ = 0  # nvidia-ml-py's own name for it holds a tuple by mistake


class NvmlUnavailable(Exception):
    """NVML is not here, does not answer, or does not work; the message says which."""


def read_nvml(*, timeout_seconds: float = 30) -> Reading:
    """All boards, slices and links.

    Raises:
        NvmlUnavailable: no driver, no package, a driver that fails, or one that hangs longer than the time-out.
    """
    answer: list[Reading | NvmlUnavailable] = []
    thread = threading.Thread(target=lambda: answer.append(_attempt()), daemon=True)
    thread.start()
    thread.join(timeout_seconds)
    if not answer:
        raise NvmlUnavailable(f"NVML gives no answer in {timeout_seconds:g} s")
    if isinstance(answer[0], NvmlUnavailable):
        raise answer[0]
    return answer[0]


def _attempt() -> Reading | NvmlUnavailable:
    try:
        import pynvml
    except ImportError:
        return NvmlUnavailable("the package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        try:
            return _Session(pynvml).read()
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return NvmlUnavailable(f"NVML says: {error}")


class _Session:
    """NVML between init and shutdown; a question the hardware cannot answer gives None."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def ask(self, question: str, *arguments: Any) -> Any:
        function: Callable[..., Any] | None = getattr(self.library, question, None)
        if function is None:
            return None
        try:
            answer = function(*arguments)
        except self.library.NVMLError:
            return None
        return answer.decode() if isinstance(answer, bytes) else answer

    def read(self) -> Reading:
        handles = {}
        for index in range(self.library.nvmlDeviceGetCount()):
            if (handle := self.ask("nvmlDeviceGetHandleByIndex", index)) is not None:
                handles[index] = handle
        boards = {index: self.board(index, handle) for index, handle in handles.items()}
        cuda = self.ask("nvmlSystemGetCudaDriverVersion_v2")
        return Reading(
            boards=tuple(boards.values()),
            links=tuple(self.link(a, b, handles, boards) for a in handles for b in handles if a < b),
            driver=self.ask("nvmlSystemGetDriverVersion"),
            driver_cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        )

    def board(self, index: int, handle: Any) -> Board:
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        compute_capability = tuple(capability) if capability else None
        cores, per_sm = self.ask("nvmlDeviceGetNumGpuCores", handle), _CORES_PER_SM.get(compute_capability or (0, 0))
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        ecc, mig = self.ask("nvmlDeviceGetEccMode", handle), self.ask("nvmlDeviceGetMigMode", handle)
        milliwatts = self.ask("nvmlDeviceGetPowerManagementLimit", handle)
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        return Board(
            index=index,
            name=self.ask("nvmlDeviceGetName", handle) or "NVIDIA GPU",
            uuid=self.ask("nvmlDeviceGetUUID", handle),
            compute_capability=compute_capability,
            memory_total_bytes=memory.total if memory else None,
            memory_free_bytes=memory.free if memory else None,
            sm_count=cores // per_sm if cores and per_sm else None,
            ecc_enabled=bool(ecc[0]) if ecc else None,
            mig_enabled=bool(mig[0]) if mig else None,
            pci_bus_id=_bus_id(pci),
            pcie_generation=self.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_width=self.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            power_limit_watts=milliwatts / 1000 if milliwatts else None,
            slices=self.slices(handle) if mig and mig[0] else (),
        )

    def slices(self, board: Any) -> tuple[Slice, ...]:
        most = self.ask("nvmlDeviceGetMaxMigDeviceCount", board) or 0
        handles = ((i, self.ask("nvmlDeviceGetMigDeviceHandleByIndex", board, i)) for i in range(most))
        return tuple(self.slice(index, handle) for index, handle in handles if handle is not None)

    def slice(self, index: int, handle: Any) -> Slice:
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle)
        attributes = self.ask("nvmlDeviceGetAttributes", handle)
        name = self.ask("nvmlDeviceGetName", handle) or ""
        return Slice(
            index=index,
            profile=name.split(" MIG ")[1] if " MIG " in name else None,
            uuid=self.ask("nvmlDeviceGetUUID", handle),
            memory_total_bytes=memory.total if memory else None,
            memory_free_bytes=memory.free if memory else None,
            sm_count=attributes.multiprocessorCount if attributes else None,
        )

    def link(self, a: int, b: int, handles: dict[int, Any], boards: dict[int, Board]) -> BoardLink:
        pair = handles[a], handles[b]
        peer = self.ask("nvmlDeviceGetP2PStatus", *pair, _P2P_READ)
        width = self.nvlinks_between(*pair, boards[b])
        generation = nvlink_generation(boards[a].compute_capability, None) if width else None
        level = self.ask("nvmlDeviceGetTopologyCommonAncestor", *pair)
        code = PathCode("NV", width) if width else PathCode(_PATH_BY_LEVEL.get(level, "SYS"))
        peer_access = None if peer is None else peer == self.library.NVML_P2P_STATUS_OK
        return BoardLink(a=a, b=b, code=code, generation=generation, peer_access=peer_access)

    def nvlinks_between(self, first: Any, second: Any, second_board: Board) -> int:
        """Active links of ``first`` that end at ``second``, or at a switch that ``second`` hangs on too."""
        direct = sum(_bus_id(pci) == second_board.pci_bus_id for pci in self.link_ends(first))
        return direct or min(self.switch_links(first), self.switch_links(second))

    def active_links(self, handle: Any) -> list[int]:
        return [
            link
            for link in range(self.library.NVML_NVLINK_MAX_LINKS)
            if self.ask("nvmlDeviceGetNvLinkState", handle, link) == 1
        ]

    def link_ends(self, handle: Any) -> list[Any]:
        return [self.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link) for link in self.active_links(handle)]

    def switch_links(self, handle: Any) -> int:
        switch = self.library.NVML_NVLINK_DEVICE_TYPE_SWITCH
        kinds = (self.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, n) for n in self.active_links(handle))
        return sum(kind == switch for kind in kinds)


def _bus_id(pci: Any) -> str | None:
    if pci is None:
        return None
    bus = pci.busId
    return bus.decode() if isinstance(bus, bytes) else str(bus)
