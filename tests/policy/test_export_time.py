"""Predicted time of an export: what was measured comes out, and it follows cores, weights and rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptft.facts import Cpu, HostMemory, LinearShape, Machine, Software
from adaptft.policy.export_time import export_seconds
from adaptft.requests import ExportFormat, ExportRequest
from adaptft.units import GiB

CPU = Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2)
HERE = Machine(
    gpus=(), cpu=CPU, memory=HostMemory(total_bytes=GiB, available_bytes=GiB), software=Software(python="3.11")
)
SMOLLM2 = (
    LinearShape(name="all", kind="mlp", in_features=106_000, out_features=1000, count=1, per_token=1),
)  # fmt: skip


def seconds(format: ExportFormat, tokens: int, *, cores: float = 2, adapters: str | None = None) -> float:
    machine = replace(HERE, cpu=replace(CPU, usable_cores=cores))
    found = export_seconds(ExportRequest(format=format, adapters=adapters), SMOLLM2, machine, "cpu", tokens)
    assert found.value is not None
    assert f"{cores:g} idle cores" in found.reason
    return found.value


@pytest.mark.parametrize(("format", "tokens", "measured"), [("gptq", 32 * 256, 94), ("awq", 16 * 256, 276 / 2)])
def test_calibration_takes_what_it_took(format: ExportFormat, tokens: int, measured: float) -> None:
    """AWQ was timed with twice as many scales to try as a CPU tries now."""
    assert seconds(format, tokens) - seconds(format, 0) == pytest.approx(measured, rel=0.05)


def test_fp8_of_a_small_model_takes_under_a_minute_where_it_took_48_seconds() -> None:
    assert seconds("fp8", 0) == pytest.approx(48, rel=0.1)


def test_more_cores_are_faster_and_an_adapter_takes_one_pass_more() -> None:
    assert seconds("gptq", 8192, cores=8) < seconds("gptq", 8192) / 3
    assert seconds("fp8", 0, adapters="run") > seconds("fp8", 0)


def test_no_time_is_made_up_for_a_gpu() -> None:
    found = export_seconds(ExportRequest(format="fp8"), SMOLLM2, HERE, "cuda", 0)
    assert found.value is None
    assert "not predicted" in found.reason
