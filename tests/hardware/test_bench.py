"""Ceilings: measured on this CPU, kept by the device, and taken by plans made here."""

from dataclasses import replace

import pytest

from adaptft import hardware
from adaptft.errors import MachineError
from adaptft.facts import Ceilings
from adaptft.hardware import with_ceilings
from adaptft.hardware.ceilings_file import Bench, bench_file, device_key, keep
from adaptft.hardware.measuring import Subject, measure
from adaptft.hardware.recorded import read_machine

SMALL = Subject(matmuls=((64, 64), (64, 128)), num_heads=2, head_dim=32)
RATES = Ceilings(matmul_flops={"bf16": 1e14}, memory_bytes_per_second=1e12, source="measured here on 2026-11-30")


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    from pathlib import Path

    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path))
    return lambda name: read_machine(Path(__file__).parents[1] / "machines" / f"{name}.json")


def test_a_cpu_is_measured_in_what_it_multiplies(monkeypatch):
    monkeypatch.setattr("adaptft.hardware.measuring.BUDGET_SECONDS", 0.01)
    told = []
    ceilings, measurements = measure(SMALL, (), native_bf16=False, source="here", progress=told.append)
    assert set(ceilings.matmul_flops) == {"fp32"}
    assert ceilings.device == "cpu"
    assert ceilings.matmul_flops["fp32"] > 1e7
    assert ceilings.memory_bytes_per_second > 1e8
    assert ceilings.attention_flops > 1e6
    assert 1e-6 < ceilings.layer_seconds < 1
    assert ceilings.link_bytes_per_second is None
    assert [m.name for m in measurements][:2] == ["fp32 matmul 128 x 64 x 64", "fp32 matmul 128 x 64 x 128"]
    assert told == ["fp32 matmuls", "copies and attention"]


def test_what_was_measured_is_found_again_for_the_same_device_only(recorded):
    a10, cpu = recorded("a10"), recorded("cpu")
    assert with_ceilings(a10, None).ceilings is None
    keep(a10, Bench(date="2026-11-30", model="qwen-7b", ceilings=RATES, measurements=()))
    assert with_ceilings(a10, None).ceilings == RATES
    assert with_ceilings(a10, "cpu").ceilings is None
    assert with_ceilings(cpu, None).ceilings is None
    capped = replace(a10, gpus=(replace(a10.gpus[0], power_limit_watts=100),))
    assert with_ceilings(capped, None).ceilings is None
    other = replace(a10, software=replace(a10.software, packages=a10.software.packages | {"torch": "2.99"}))
    assert with_ceilings(other, None).ceilings is None
    on_cpu = replace(RATES, device="cpu")
    keep(cpu, Bench(date="2026-11-30", model="qwen-7b", ceilings=on_cpu, measurements=()))
    assert with_ceilings(a10, None).ceilings == RATES
    assert with_ceilings(cpu, "cpu").ceilings == on_cpu


def test_a_slice_is_another_device_than_its_board(recorded):
    part, whole = recorded("mig-3g.40gb"), recorded("h100x8")
    assert "3g.40gb" in device_key(part, "cuda")
    assert device_key(whole, "cuda").startswith("8 x NVIDIA H100")


def test_a_damaged_record_is_named(recorded):
    bench_file().parent.mkdir(parents=True, exist_ok=True)
    bench_file().write_text('{"by_device": 3}')
    with pytest.raises(MachineError) as caught:
        with_ceilings(recorded("a10"), None)
    assert str(bench_file()) in caught.value.problem
    assert "adaptft bench" in caught.value.fix


def test_the_probe_itself_measures_nothing():
    assert hardware.probe().ceilings is None
