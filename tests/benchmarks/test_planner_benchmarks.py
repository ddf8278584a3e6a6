"""The planner's benchmarks: what they compare, and that they run, here on a CPU with a tiny model."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = (
    "source", "date", "gpu", "n_gpu", "model", "params_b", "method", "precision", "seq_len", "micro_batch",
    "grad_accum", "grad_ckpt", "attention", "packing", "kernels", "parallelism", "tokens_per_s_per_gpu",
    "samples_per_s", "step_s", "mfu", "peak_mem_gb", "notes",
)  # fmt: skip
BUILDER = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM

RAW = dict(
    model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, vocab_size=512, tie_word_embeddings=True,
    max_position_embeddings=512, torch_dtype="float32",
)

def config(name):
    return dict(RAW)

def build(name, device, dtype, attn_implementation):
    raw = config(name)
    raw.pop("architectures")
    made = AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(
            made, dtype=getattr(torch, dtype), attn_implementation=attn_implementation
        )
"""


def benchmark(name: str):
    """A script of the folder, which finds its neighbours as it does when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def published():
    return benchmark("planner_published")


def row(**changed: str) -> dict[str, str]:
    usual = dict.fromkeys(COLUMNS, "") | {
        "source": "pytorch.org blog", "gpu": "A100-SXM4-80GB", "model": "Llama2-7B", "method": "pretrain",
        "precision": "bf16", "seq_len": "4096", "micro_batch": "2", "grad_accum": "1", "grad_ckpt": "none",
        "packing": "full sequences", "kernels": "torch.compile", "parallelism": "FSDP1 full shard x128", "mfu": "68",
        "n_gpu": "128",
    }  # fmt: skip
    return usual | changed


def test_a_comparable_row_is_predicted(published):
    found = published.speed(row())
    assert found["measured"] == pytest.approx(4603, rel=0.01)  # 68 % of 312 TFLOP/s, attention counted
    assert abs(found["error"]) < 0.15
    assert published.planned(row(), published.shape(row())).decisions.placement.value.num_gpus == 128


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"mfu": ""}, "no tokens per second"),
        ({"seq_len": ""}, "settings not stated"),
        ({"model": "chatglm3-6b"}, "a model of a family or size that is not planned for"),
        ({"parallelism": "TP4 PP4 CP1"}, "layers split over GPUs"),
        ({"grad_ckpt": "selective"}, "recomputes single operators"),
        ({"kernels": "eager"}, "eager kernels"),
        ({"gpu": "H100-SXM5-80GB"}, "H100 with kernels of 2024-03"),
        ({"precision": "fp8 (delayed scaling)"}, "FP8 training of all weights"),
        ({"packing": "no"}, "padded rows"),
    ],
)
def test_what_cannot_be_compared_says_why(published, changed, reason):
    assert published.speed(row(**changed))["not_comparable"].startswith(reason)


def test_the_script_writes_errors_by_source_and_rankings(published, tmp_path):
    import csv

    lines = [row(), row(gpu="H100-SXM5-80GB", mfu="45"), row(kernels="eager")]
    lines.append(row(source="Lightning-AI/litgpt", method="lora", parallelism="single", peak_mem_gb="24", mfu=""))
    with (tmp_path / "table.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(lines)
    script = ROOT / "benchmarks" / "planner_published.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "table.csv", "--out", tmp_path / "o.json"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["speed"]["pytorch.org"]["compared"] == 1
    assert sum(found["speed"]["pytorch.org"]["not_comparable"].values()) == 2
    assert found["memory"]["Lightning-AI/litgpt"]["compared"] == 1
    assert [(one["gpus"], one["right"]) for one in found["rankings"]] == [(["A100-SXM4-80GB", "H100-SXM5-80GB"], True)]
    assert "GPUs ranked as measured: 1 of 1 pairs" in done.stdout


@pytest.fixture(scope="module")
def accuracy():
    return benchmark("planner_accuracy")


def test_the_matrix_has_what_the_planner_is_to_be_proved_on(accuracy):
    cells = accuracy.CELLS
    forced = [cell for cell in cells if cell.kind == "forced"]
    assert len(forced) >= 40
    assert sum(cell.kind == "planned" for cell in cells) >= 40
    assert {cell.train_type for cell in forced} == {"full", "lora", "qlora"}
    assert {cell.compute for cell in forced} == {"bf16", "fp8", "fp32"}
    assert {cell.checkpointing for cell in forced} == {"none", "some", "all"}
    assert {cell.packing for cell in forced} == {True, False}
    assert {512, 32768} <= {cell.max_length for cell in forced}
    assert {"qwen2.5-0.5b", "qwen2.5-32b", "qwen3-8b", "llama3-8b"} <= {cell.model for cell in forced}


def test_cells_are_named_by_ranges(accuracy):
    assert accuracy.numbers("0-2,5", 10) == [0, 1, 2, 5]
    assert accuracy.numbers("8-12", 10) == [8, 9]
    assert accuracy.numbers(None, 3) == [0, 1, 2]


def test_the_summary_counts_errors_choices_and_runs_out_of_memory(accuracy):
    def cell(kind, **more):
        numbers = {"predicted_peak_bytes": 110, "measured_peak_bytes": 100}
        return {"kind": kind, "model": "m", "train_type": "lora", **numbers, **more}

    cells = [
        cell("forced", predicted_step_seconds=0.9, measured_step_seconds=1.0),
        cell("sweep", micro_batch=1, predicted_step_seconds=1.0, measured_step_seconds=1.1),
        cell("sweep", micro_batch=2, predicted_step_seconds=1.2, measured_step_seconds=1.0),
        cell("planned", out_of_memory=True),
        cell("planned", planned_not_to_fit=True),
    ]
    found = accuracy.summary(cells)
    tenth = pytest.approx(0.1)
    assert found["peak_bytes"] == {"cells": 3, "mean": tenth, "lowest": tenth, "highest": tenth}
    assert (found["planned_runs"], found["planned_out_of_memory"]) == (1, 1)
    assert found["choices"][0]["slower"] == pytest.approx(0.1)


@pytest.mark.slow
def test_the_matrix_runs_and_goes_on_where_it_stopped(tmp_path):
    (tmp_path / "builder.py").write_text(BUILDER)
    words = [sys.executable, ROOT / "benchmarks" / "planner_accuracy.py", tmp_path / "builder.py", "--tiny"]
    words += ["--out", tmp_path / "o.json"]
    folders = {"ADAPTFT_HOME": str(tmp_path), "ADAPTFT_CACHE": str(tmp_path)}
    environment = os.environ | folders | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    for cells, count in (("0-2", 3), ("0-5", 6)):
        done = subprocess.run([*words, "--cells", cells], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "o.json").read_text())
        assert len(found["cells"]) == count
    assert done.stdout.count(" GiB (") == 3  # the first three were not run again
    assert all(cell["measured_step_seconds"] > 0 for cell in found["cells"])
    assert {cell["kind"] for cell in found["cells"]} == {"forced", "planned", "sweep"}
