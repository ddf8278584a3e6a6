"""``adaptft bench`` and the plans made after it."""

import json

import pytest

from adaptft.facts import Machine
from adaptft.hardware.ceilings_file import Bench
from adaptft.records import from_dict


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("adaptft.hardware.measuring.BUDGET_SECONDS", 0.01)
    return tmp_path


def test_a_plan_made_after_a_bench_is_predicted_from_it_and_says_so(home, adaptft_here, tiny_qwen2):
    words = ("plan", "--model", str(tiny_qwen2), "--train_type", "lora", "--device", "cpu")
    assert json.loads(adaptft_here(*words, "--json").stdout)["speed"] is None
    done = adaptft_here("bench", "--model", str(tiny_qwen2), "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "fp32" in done.stdout
    assert "over all shapes" in done.stdout
    assert str(home) in done.stdout.replace("\n", "").replace(" ", "") or "ceilings.json" in done.stdout
    after = adaptft_here(*words, "--json")
    assert json.loads(after.stdout)["speed"]["step_seconds"] > 0
    assert from_dict(Machine, json.loads(after.stdout)["machine"]).ceilings.device == "cpu"
    page = " ".join(adaptft_here(*words).stdout.split())
    assert "predicted from rates measured here on 20" in page
    assert "by adaptft bench" in page


def test_the_measurements_come_as_json(home, adaptft_here, tiny_qwen2):
    done = adaptft_here("bench", "--model", str(tiny_qwen2), "--device", "cpu", "--json")
    bench = from_dict(Bench, json.loads(done.stdout))
    assert bench.model == str(tiny_qwen2)
    assert all(measurement.value > 0 for measurement in bench.measurements)
    assert bench.ceilings.source.endswith("by adaptft bench")


def test_a_gpu_that_is_not_there_is_not_measured(home, adaptft_here):
    done = adaptft_here("bench", "--device", "cuda")
    assert done.returncode == 1
    assert "A GPU is to be measured" in done.stderr
    assert len(done.stderr.splitlines()) == 2
