"""Measure what a device reaches: matmuls at a model's shapes, copies, attention, links. For ``adaptft bench``.

The only part of the probe that computes; torch is imported when it is called.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from adaptft.facts import Ceilings, Gpu

if TYPE_CHECKING:
    pass

Device = Literal["cuda", "cpu"]
BUDGET_SECONDS = 0.4
"""Of one measurement, after a first call that is not counted; it ends sooner after ``MOST_CALLS``."""
MOST_CALLS = 30
TOKENS: dict[Device, int] = {"cuda": 8192, "cpu": 128}
"""Rows of the left matrix: a usual micro-batch; on a CPU fewer do, and more would take minutes."""
COPY_BYTES: dict[Device, int] = {"cuda": 2**30, "cpu": 2**28}
ATTENTION_TOKENS: dict[Device, int] = {"cuda": 2048, "cpu": 512}
EXCHANGE_BYTES = 2**28
FP8_SINCE, BF16_SINCE = (8, 9), (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What to measure with: the (inputs, outputs) of a model's matmuls, and the form of its attention."""

    matmuls: tuple[tuple[int, int], ...]
    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number, for people: ``bf16 matmul 8192 x 3584 x 18944``, in ``unit`` a second."""

    name: str
    value: float
    unit: Literal["FLOP/s", "B/s", "s"]


def measure(
    subject: Subject, gpus: tuple[Gpu, ...], *, native_bf16: bool, source: str, progress: Callable[[str], None]
) -> tuple[Ceilings, tuple[Measurement, ...]]:
    """Ceilings of the first of ``gpus`` and the links between them, or of the CPU where there are none.

    Args:
        native_bf16: False leaves bf16 out on a CPU, which would emulate it for minutes.
        source: what the ceilings say of themselves.
        progress: told what is measured next.
    """
    device: Device = "cuda" if gpus else "cpu"
    found: list[Measurement] = []
    rates: dict[str, float] = {}
    for kind in kinds(gpus, native_bf16):
        progress(f"{kind} matmuls")
        rates[kind] = _matmul_rate(kind, subject, device, found)
    progress("copies and attention")
    copy = _copy_rate(device)
    attention = _attention_rate(subject, device, "bf16" if "bf16" in rates else "fp16" if "fp16" in rates else "fp32")
    host = _host_link_rate() if gpus else None
    layer = None if gpus else _layer_seconds()
    link = None
    if len(gpus) > 1:
        progress(f"the links between {len(gpus)} GPUs")
        link = _exchange_rate(len(gpus))
    ceilings = Ceilings(
        matmul_flops=rates,
        memory_bytes_per_second=copy,
        source=source,
        device=device,
        attention_flops=attention,
        link_bytes_per_second=link,
        host_link_bytes_per_second=host,
        layer_seconds=layer,
    )
    return ceilings, (*found, *_others(ceilings))


def _others(ceilings: Ceilings) -> Iterator[Measurement]:
    """The measurements that are one number each."""
    yield Measurement(name="copy, read and written", value=ceilings.memory_bytes_per_second, unit="B/s")
    rows: tuple[tuple[str, float | None, Literal["FLOP/s", "B/s", "s"]], ...] = (
        ("attention, forward and backward", ceilings.attention_flops, "FLOP/s"),
        ("pinned host memory to device", ceilings.host_link_bytes_per_second, "B/s"),
        ("all-reduce, bus bandwidth", ceilings.link_bytes_per_second, "B/s"),
        ("launching a decoder layer", ceilings.layer_seconds, "s"),
    )
    yield from (Measurement(name=name, value=value, unit=unit) for name, value, unit in rows if value is not None)


def kinds(gpus: tuple[Gpu, ...], native_bf16: bool) -> tuple[str, ...]:
    """What the device multiplies in hardware."""
    if not gpus:
        return ("fp32", "bf16") if native_bf16 else ("fp32",)
    capability = gpus[0].compute_capability or (0, 0)
    ampere = ("tf32", "bf16") if capability >= BF16_SINCE else ()
    return ("fp32", "fp16", *ampere, *(("fp8",) if capability >= FP8_SINCE else ()))


def _matmul_rate(kind: str, subject: Subject, device: Device, found: list[Measurement]) -> float:
    """FLOP/s over all shapes together; each is added to ``found``."""
    import torch

    tokens, flops, seconds = TOKENS[device], 0.0, 0.0
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    try:
        for inputs, outputs in subject.matmuls:
            work = 2.0 * tokens * inputs * outputs
            took = _seconds(_matmul(kind, tokens, inputs, outputs, device), device)
            found.append(
                Measurement(name=f"{kind} matmul {tokens} x {inputs} x {outputs}", value=work / took, unit="FLOP/s")
            )
            flops, seconds = flops + work, seconds + took
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return flops / seconds


def _matmul(kind: str, tokens: int, inputs: int, outputs: int, device: Device) -> Callable[[], object]:
    """A product of ``tokens`` rows with a weight of ``outputs`` x ``inputs``, as a linear layer does it."""
    import torch

    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
    dtype = dtypes.get(kind, torch.float32)
    left = torch.randn(tokens, inputs, device=device, dtype=dtype)
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    if kind != "fp8":
        return lambda: left @ weight.t()
    small, narrow = left.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    rows, columns = torch.ones(tokens, 1, device=device), torch.ones(1, outputs, device=device)
    return lambda: torch._scaled_mm(
        small, narrow.t(), scale_a=rows, scale_b=columns, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _copy_rate(device: Device) -> float:
    import torch

    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _seconds(lambda: target.copy_(source), device)


def _host_link_rate() -> float:
    import torch

    host = torch.empty(COPY_BYTES["cpu"], dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(host, device="cuda")
    return host.numel() / _seconds(lambda: target.copy_(host, non_blocking=True), "cuda")


def _attention_rate(subject: Subject, device: Device, kind: str) -> float:
    """Causal attention; the FLOPs are 2 matmuls forward and 5 backward over half of the square."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    tokens, rows = ATTENTION_TOKENS[device], 4 if device == "cuda" else 1
    shape = (rows, subject.num_heads, tokens, subject.head_dim)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def both_passes() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        torch.autograd.grad(out.sum(), (query, key, value))

    flops = 7 * rows * subject.num_heads * tokens**2 * subject.head_dim
    return flops / _seconds(both_passes, device)


def _layer_seconds() -> float:
    """Forward and backward of a decoder layer of 64 numbers and 8 tokens, uncompiled: calls, and hardly any work."""
    import torch

    width, tokens = 64, 8
    linears = [torch.nn.Linear(width, width) for _ in range(7)]
    norms = [torch.nn.RMSNorm(width) for _ in range(2)]
    state = torch.randn(1, 1, tokens, width, requires_grad=True)

    def both_passes() -> None:
        normed = norms[0](state)
        query, key, value = (linear(normed) for linear in linears[:3])
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        middle = state + linears[3](attended)
        normed = norms[1](middle)
        out = middle + linears[6](torch.nn.functional.silu(linears[4](normed)) * linears[5](normed))
        torch.autograd.backward(out.sum())

    return _seconds(both_passes, "cpu")


def _exchange_rate(num_gpus: int) -> float:
    """Bus bandwidth of an all-reduce over all GPUs, as NCCL's tests count it."""
    import torch
    from torch.cuda import nccl

    parts = [torch.ones(EXCHANGE_BYTES // 4, device=f"cuda:{index}") for index in range(num_gpus)]

    def exchange() -> None:
        nccl.all_reduce(parts)  # type: ignore[no-untyped-call]
        for index in range(num_gpus):
            torch.cuda.synchronize(index)

    return 2 * (num_gpus - 1) / num_gpus * EXCHANGE_BYTES / _seconds(exchange, "cuda")


def _seconds(call: Callable[[], object], device: Device) -> float:
    """Median time of ``call``, warm."""
    import torch

    def once() -> float:
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    once()
    times = [once()]
    while sum(times) < BUDGET_SECONDS and len(times) < MOST_CALLS:
        times.append(once())
    return statistics.median(times)
