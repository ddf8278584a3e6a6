"""The small parts of training: switches, arguments, what is measured, what is said."""

import io
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from training_plans import CPU_ONLY, FULL, a_gpu, a_plan
from transformers import TrainerControl, TrainerState

from adaptft.errors import TrainingError
from adaptft.plans import Checkpointing, Method, Placement, Precision
from adaptft.reports import Comparison, DataReport, RunReport, StepMetrics
from adaptft.training import adapters, metrics, numerics, recovery
from adaptft.training.arguments import autocast_dtype, num_steps, training_arguments
from adaptft.training.checkpointing import recomputing_layers
from adaptft.training.model_card import model_card
from adaptft.training.progress import ProgressReport, numbers
from adaptft.training.results import describe


@pytest.mark.parametrize(("layers", "of", "expected"), [(0, 4, []), (2, 4, [0, 1]), (4, 4, [0, 1, 2, 3])])
def test_the_first_layers_recompute_since_they_do_when_the_others_are_freed(layers, of, expected):
    assert list(recomputing_layers(Checkpointing(layers=layers, of=of))) == expected


def test_graphs_are_counted_from_the_start_of_the_run_and_late_ones_apart():
    double = torch.compile(lambda x: 2 * x, backend="eager")
    double(torch.zeros(3))  # before the run
    counter = metrics.GraphCounter()
    assert (counter.total, counter.late) == (0, 0)
    double(torch.zeros(4))  # the rehearsal
    counter.on_train_begin(None, None, None)
    for length in (5, 6, 7, 8):
        double(torch.zeros(length))
        counter.on_step_end(None, None, None)
    assert (counter.total, counter.late) == (1, 0), "lengths become a variable of one graph"
    double(torch.zeros(4, dtype=torch.float64))
    counter.on_step_end(None, None, None)
    assert (counter.total, counter.late) == (2, 1)


@pytest.mark.parametrize(("cores", "processes", "threads"), [(16.0, 1, 16), (0.5, 1, 1), (8.0, 4, 2), (2.0, 8, 1)])
def test_threads_follow_the_usable_cores(cores, processes, threads):
    assert numerics.cpu_threads(cores, processes) == threads


def test_settings_from_outside_are_left_alone_under_either_name(monkeypatch):
    for name in (*numerics.ENVIRONMENT, *numerics.OLDER_NAMES.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    numerics.set_environment()
    assert "PYTORCH_ALLOC_CONF" not in os.environ
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    numerics.set_environment()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")


def test_compiled_layers_are_kept_in_our_cache_unless_another_place_is_set(monkeypatch, tmp_path):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(numerics.COMPILE_CACHE, "elsewhere")
    numerics.set_environment()
    assert os.environ[numerics.COMPILE_CACHE] == "elsewhere"
    monkeypatch.delenv(numerics.COMPILE_CACHE)
    numerics.set_environment()
    assert os.environ[numerics.COMPILE_CACHE] == str(tmp_path / "home" / "compiled")


def test_a_cache_that_cannot_be_made_leaves_torch_its_own(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "file"))
    monkeypatch.setenv(numerics.COMPILE_CACHE, "")
    monkeypatch.delenv(numerics.COMPILE_CACHE)
    numerics.set_environment()
    assert numerics.COMPILE_CACHE not in os.environ


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("fp32_matmul", "expected"), [("tf32", "high"), ("ieee", "highest")])
def test_tf32_is_switched_without_a_warning(fp32_matmul, expected):
    before = torch.get_float32_matmul_precision()
    numerics.set_matmul_precision(Precision(weights="fp32", compute="fp32", fp32_matmul=fp32_matmul))
    assert torch.get_float32_matmul_precision() == expected
    assert torch.backends.cuda.matmul.allow_tf32 == (expected == "high"), "the older switch agrees"
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("weights", "compute", "method", "expected"),
    [
        ("fp32", "fp32", {}, "fp32"),
        ("bf16", "bf16", {}, "bf16"),  # adapters are fp32 masters
        ("bf16", "fp8", {}, "bf16"),
        ("bf16", "bf16", FULL, "fp32"),  # nothing to cast
        ("fp32", "bf16", FULL, "bf16"),
        ("fp32", "fp16", FULL, "fp16"),
    ],
)
def test_autocast_is_on_where_weights_and_arithmetic_differ(tiny_qwen2, weights, compute, method, expected):
    plan = a_plan(tiny_qwen2, precision={"weights": weights, "compute": compute}, method=method)
    assert autocast_dtype(plan.decisions) == expected


@pytest.mark.parametrize(
    ("asked", "epochs", "expected"), [(None, 3.0, -1), (50, 3.0, 50), (None, 0, 7)], ids=["epochs", "asked", "planned"]
)
def test_steps_asked_for_win_and_else_epochs_are_counted_on_the_real_rows(tiny_qwen2, asked, epochs, expected):
    schedule = {"max_steps": asked or 7, "num_train_epochs": epochs}
    assert num_steps(a_plan(tiny_qwen2, request={"max_steps": asked}, schedule=schedule)) == expected


def test_arguments_carry_the_plan(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, schedule={"save_steps": 4, "eval_steps": 2}, request={"save_strategy": "epoch"})
    arguments = training_arguments(plan, tmp_path, evaluates=True)
    assert (arguments.save_strategy, arguments.eval_strategy, arguments.eval_steps) == ("epoch", "steps", 2)
    assert training_arguments(plan, tmp_path, evaluates=False).eval_strategy == "no"
    assert arguments.learning_rate == plan.decisions.optimizer.value.learning_rate


@pytest.mark.parametrize(
    ("micro", "way_out"),
    [(4, "--per_device_train_batch_size 2 --global_batch_size 8"), (1, "--gradient_checkpointing true")],
)
def test_out_of_memory_tells_the_numbers_and_a_way_out_that_keeps_the_global_batch(
    tiny_qwen2, tmp_path, micro, way_out
):
    batch = {"micro_batch_size": micro, "gradient_accumulation_steps": 8 // micro, "global_batch_size": 8}
    plan = a_plan(tiny_qwen2, batch=batch)
    with pytest.raises(TrainingError) as caught, recovery.explained(plan, tmp_path, free=lambda _: (1 << 30, 24 << 30)):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "32 MiB were predicted, 1.0 GiB of 24.0 GiB are free" in caught.value.problem
    assert way_out in caught.value.fix


def test_rows_without_trained_tokens_are_refused():
    with pytest.raises(TrainingError, match="No token"):
        recovery.require_trained_tokens(0)


def some_steps(seconds):
    return tuple(
        StepMetrics(step=i + 1, loss=1.0, learning_rate=1e-4, gradient_norm=1.0, num_tokens=100, seconds=s)
        for i, s in enumerate(seconds)
    )


def test_speeds_leave_the_first_two_steps_out():
    steps = some_steps([60.0, 5.0, 1.0, 1.0, 2.0])
    assert metrics.tokens_per_second(steps) == 75
    assert metrics.median_step_seconds(steps) == 1.0
    assert metrics.tokens_per_second(some_steps([4.0])) == 25, "of a single step there is nothing else"
    assert metrics.tokens_per_second(()) == 0
    assert metrics.median_step_seconds(()) is None


def test_what_was_measured_is_reported_also_where_nothing_was_predicted():
    assert metrics.compare(None, 1.0) == Comparison(predicted=None, measured=1.0)
    assert metrics.compare(None, 1.0).error is None
    assert metrics.compare(2.0, None) is None
    assert metrics.compare(2.0, 1.0).error == 1.0


def test_peak_memory_on_the_cpu_is_the_growth_of_the_process_from_now_on():
    # in a process of its own: in this one, memory that earlier tests gave back may serve the block
    code = (
        "import torch; from adaptft.training import metrics; before = torch.ones(100 << 20); del before; "
        "memory = metrics.PeakMemory(on_gpu=False); block = torch.ones(32 << 20); "
        "print(memory.measured_bytes() / (block.numel() * 4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.9 < float(done.stdout) < 1.5


def shown(is_terminal, num_steps=3):
    text = io.StringIO()
    progress = ProgressReport(Console(file=text, force_terminal=is_terminal, width=120))
    state = TrainerState(max_steps=num_steps, is_world_process_zero=True)
    progress.on_train_begin(None, state, TrainerControl())
    progress.on_log(None, state, TrainerControl(), {"eval_loss": 3.5})
    for step in range(1, num_steps + 1):
        state.global_step = step
        logs = {"loss": 4.0 - step, "tokens_per_second": 12_530.0, "seconds": 0.1}
        progress.on_log(None, state, TrainerControl(), logs)
    progress.on_train_end(None, state, TrainerControl())
    return text.getvalue()


def test_piped_progress_is_plain_lines_for_the_first_and_the_last_step():
    lines = shown(is_terminal=False).splitlines()
    assert lines[0] == "step 0: held-out loss 3.5000"
    assert [line.split(":")[0] for line in lines[1:]] == ["step 1/3", "step 3/3"]
    assert "loss 1.0000, 12.53 k tokens/s" in lines[-1]
    assert lines[1].endswith(" left")
    assert "left" not in lines[-1], "after the last step nothing is"


def test_on_a_terminal_there_is_a_bar():
    text = shown(is_terminal=True)
    assert "3/3" in text
    assert "loss 1.0000" in text


def test_numbers_of_a_step_read_as_words():
    assert numbers({"loss": 1.23456, "tokens_per_second": 950.0}).startswith("loss 1.2346, 950 tokens/s")


@pytest.mark.parametrize(
    ("method", "kind", "line"), [({}, "adapter", "lora, rank 4, alpha 8"), (FULL, "model", "full fine-tuning")]
)
def test_the_model_card_and_the_description_say_what_it_is(tiny_qwen2, method, kind, line):
    from adaptft.models import LocalModel

    plan = a_plan(tiny_qwen2, method=method)
    report = RunReport(
        steps=some_steps([1.0]), initial_eval_loss=2.0, final_eval_loss=None, total_seconds=1.0, tokens_per_second=1.0,
        num_tokens=100, peak_memory=None, step_seconds=None, first_step_seconds=1.0, input_wait_share=0.0,
        data=DataReport(dialect="x", num_accepted=1, num_rejected=0),
    )  # fmt: skip
    card = model_card(plan, report)
    assert line in card
    assert "2.0000 before, not measured after" in card
    assert "| Rows | 1; 5.0% of them held out for evaluation |" in card
    assert "| Steps | 1 |" in card
    assert "| Tokens | 100 |" in card
    assert f'base_model: "{tiny_qwen2}"' in card
    assert describe(plan, LocalModel(name="tiny", path=tiny_qwen2)).kind == kind


def test_the_model_card_says_where_nothing_was_held_out(tiny_qwen2):
    plan = a_plan(tiny_qwen2, schedule={"held_out_ratio": 0.0, "num_train_epochs": 1.5})
    report = RunReport(
        steps=some_steps([1.0, 1.0]), initial_eval_loss=None, final_eval_loss=None, total_seconds=1.0,
        tokens_per_second=1.0, num_tokens=200, peak_memory=None, step_seconds=None, first_step_seconds=1.0,
        input_wait_share=0.0, data=DataReport(dialect="x", num_accepted=9, num_rejected=2),
    )  # fmt: skip
    card = model_card(plan, report)
    assert "| Rows | 9, 2 unusable ones left out; none held out |" in card
    assert "| Steps | 2 |\n| Epochs | 1.5, as planned |" in card
    assert "| Held-out loss | not measured |" in card
    assert "1.0000 in the first step, 1.0000 in the last" in card


def test_a_plan_for_several_ranks_without_gpus_runs_on_the_cpu(tiny_qwen2):
    ddp = Placement(strategy="ddp", gpu_indices=(0, 1))
    batch = {"data_parallel_size": 2, "global_batch_size": 4}
    assert not a_plan(tiny_qwen2, placement=ddp, batch=batch).uses_gpu
    machine = replace(CPU_ONLY, gpus=(a_gpu(0), a_gpu(1)))
    assert a_plan(tiny_qwen2, placement=ddp, batch=batch, machine=machine).uses_gpu


@pytest.mark.parametrize(
    ("targets", "regex", "excluded"),
    [
        (("q_proj",), None, ["mlp.gate", "lm_head"]),
        (("q_proj", "lm_head"), None, ["mlp.gate"]),
        ((), ".*(q_proj|lm_head)", ["mlp.gate"]),
        ((), ".*q_proj", ["mlp.gate", "lm_head"]),
    ],
)
def test_a_head_that_was_asked_for_is_not_kept_from_its_adapter(targets, regex, excluded):
    method = Method(
        train_type="lora", base_storage="bf16", target_modules=targets, target_regex=regex,
        skipped_modules=("mlp.gate", "lm_head"),
    )  # fmt: skip
    assert adapters._excluded(method) == excluded
