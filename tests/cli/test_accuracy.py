"""The history of runs: a line a run, read back, and summarised by ``adaptft plan --accuracy``."""

import json
from dataclasses import replace

import pytest
from sample_plan import MACHINE

from adaptft.accuracy import describe, history_file, read_history, record_run, summarise
from adaptft.facts import DatasetShape
from adaptft.policy import plan_training
from adaptft.reports import Comparison, DataReport, RunReport, StepMetrics
from adaptft.requests import TrainRequest
from adaptft.shapes import model_shape

CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip
DATA = DatasetShape(num_rows=1000, num_tokens=200_000, num_trained_tokens=100_000, longest_row_tokens=500)
PLAN = plan_training(MACHINE, model_shape(CONFIG, "small"), DATA, TrainRequest(model="m", train_type="lora"))


def report(memory: float, seconds: float, steps: int = 5) -> RunReport:
    step = StepMetrics(step=1, loss=1.0, learning_rate=1e-4, gradient_norm=None, num_tokens=10, seconds=seconds)
    return RunReport(
        steps=(step,) * steps, initial_eval_loss=None, final_eval_loss=None, total_seconds=1.0, tokens_per_second=1.0,
        num_tokens=10, peak_memory=Comparison(predicted=100.0, measured=memory),
        step_seconds=Comparison(predicted=1.0, measured=seconds), first_step_seconds=1.0, input_wait_share=0.0,
        data=DataReport(dialect="x", num_accepted=1, num_rejected=0), versions={"adaptft": "0.1.0"},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))


def test_a_run_is_a_line_that_says_what_it_was():
    record_run(PLAN, report(110.0, 0.8), "2026-11-30")
    record_run(PLAN, report(90.0, 2.0), "2026-12-01")
    runs, lost = read_history()
    assert lost == 0
    assert runs[0] == describe(PLAN, report(110.0, 0.8), "2026-11-30")
    assert (runs[0].device, runs[0].model, runs[0].train_type) == (MACHINE.gpus[0].name, "small", "lora")
    memory = summarise([run.peak_memory for run in runs])
    assert (memory.num_runs, memory.worst_under) == (2, pytest.approx(100 / 110 - 1))
    assert memory.worst_over == pytest.approx(100 / 90 - 1)
    assert memory.mean_error == pytest.approx((1 - 100 / 110 + 100 / 90 - 1) / 2)


def test_a_run_of_warm_up_steps_only_has_no_speed_to_compare():
    assert describe(PLAN, report(110.0, 0.8, steps=2), "2026-11-30").step_seconds is None


def test_lines_of_another_version_are_counted_and_left_out(adaptft_here):
    record_run(PLAN, report(110.0, 0.8), "2026-11-30")
    with history_file().open("a") as stream:
        stream.write('{"date": "2026"}\n{"cut of')
    runs, lost = read_history()
    assert (len(runs), lost) == (1, 2)
    page = " ".join(adaptft_here("plan", "--accuracy").stdout.split())
    assert "2 lines of" in page


def test_the_command_prints_runs_and_errors(adaptft_here):
    assert "No run was finished here yet" in adaptft_here("plan", "--accuracy").stdout
    for _ in range(25):
        record_run(PLAN, report(110.0, 0.8), "2026-11-30")
    unpredicted = Comparison(predicted=None, measured=5.0)
    record_run(PLAN, replace(report(110.0, 0.8), step_seconds=None, peak_memory=unpredicted), "2026-12-01")
    page = " ".join(adaptft_here("plan", "--accuracy").stdout.split())
    assert "Peak memory off by 9.1% on average over 25 runs; at worst -9.1% and +0.0%" in page
    assert "Step time off by 25.0% on average over 25 runs" in page
    assert "The last 20 of 26 runs are shown." in page
    found = json.loads(adaptft_here("plan", "--accuracy", "--json").stdout)
    assert len(found["runs"]) == 26
    assert found["summary"]["step time"]["mean_error"] == pytest.approx(0.25)


def test_nothing_to_compare_is_said(adaptft_here):
    record_run(PLAN, replace(report(1.0, 1.0), step_seconds=None, peak_memory=None), "2026-11-30")
    assert "no run with a prediction" in adaptft_here("plan", "--accuracy").stdout
