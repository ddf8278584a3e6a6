"""Ranks that hold parts of the weights follow one rank's losses, and leave the files that one rank leaves.

Tolerances: losses 1e-5 and gradient norms 1e-4, relative; shards add the same FP32 numbers in another order. On a base
in FP8, where activations are rounded to 4 bits, a last bit decides on some of them: a hundred times as much.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from training_plans import FULL, a_plan

from adaptft.errors import RequestError, TrainingError
from adaptft.models.planned import load_for_training
from adaptft.plans import AdapterKernels, Batch, Placement
from adaptft.records import read_json, write_json
from adaptft.reports import RunReport
from adaptft.training import ranks, train
from adaptft.training.guarding import broken_weight

HERE = Path(__file__).parent
GENTLE = {"learning_rate": 1e-4}
STEPS = {"max_steps": 4, "eval_steps": 2, "save_steps": 2}
RECOMPUTING = {"layers": 2}
RESUMES = {"resume_from_checkpoint": "auto"}
AFTER = "-from-one"


def planned(model, rows, *, num_ranks=1, strategy="fsdp2", parts=(4, 1), packing=True, request=None, **changed):
    """A plan of four packs or rows a step; ``parts`` are micro-batch and accumulation."""
    batch = Batch(
        micro_batch_size=parts[0], gradient_accumulation_steps=parts[1], data_parallel_size=num_ranks,
        global_batch_size=4, eval_batch_size=2, max_length=160, packing=packing,
    )  # fmt: skip
    several = Placement(strategy=strategy, gpu_indices=tuple(range(num_ranks)))
    settings = {"optimizer": GENTLE, "schedule": STEPS, "batch": batch} | changed
    placement = several if num_ranks > 1 else Placement(strategy="cpu")
    return a_plan(model, request={"dataset": (str(rows),), **(request or {})}, placement=placement, **settings)


# name: (the run of one rank, what two ranks do otherwise)
RUNS = {
    "ddp": ({}, {"strategy": "ddp", "parts": (2, 1)}),
    "full": ({"method": FULL}, {"parts": (2, 1)}),
    "lora": ({}, {"parts": (1, 2), "checkpointing": RECOMPUTING}),
    "qlora": (
        {"method": {"train_type": "qlora", "base_storage": "nf4", "double_quant": True}},
        {"parts": (2, 1)},
    ),
    "fp8": (
        {"method": {"base_storage": "fp8"}, "adapters": {"fused": False, "calibration_tokens": 100}},
        {"parts": (2, 1)},
    ),
    "unpacked": (
        {"method": FULL, "packing": False},
        {"strategy": "zero2", "parts": (1, 2), "checkpointing": RECOMPUTING},
    ),
}
GONE_ON_WITH = ("full", "lora")
"""Runs of one rank that two ranks go on with."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Packs and rows that do not divide evenly among micro-batches and ranks."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = [(n, w) for w in ("apple", "pear", "plum", "fig", "lime") for n in range(9)]
    path.write_text(
        "\n".join(json.dumps({"instruction": f"Say {w} {n}.", "output": f"{w} " * (n + 1)}) for n, w in words)
    )
    return path


@pytest.fixture(scope="module")
def models(tiny_qwen2, tiny_llama):
    """Tied and untied heads."""
    return {name: tiny_llama if name == "unpacked" else tiny_qwen2 for name in RUNS}


def only_checkpoint(run, folder):
    """What is left of ``run`` where it was stopped after step 2."""
    folder.mkdir()
    shutil.copytree(run / "checkpoint-2", folder / "checkpoint-2")
    shutil.copy(run / "plan.json", folder)
    return folder


@pytest.fixture(scope="module")
def runs(models, rows, tmp_path_factory):
    """Reports by (name, ranks), and the folder they are in: ``NAME-RANKS``."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPTFT_HOME", str(folder / "home"))
        pytest.importorskip("bitsandbytes")
        for name, (settings, _) in RUNS.items():
            train(planned(models[name], rows, **settings), folder / f"{name}-1")
        words = []
        for name, (settings, several) in RUNS.items():
            together = {"num_ranks": 2} | settings | several
            words += [(f"{name}-2", planned(models[name], rows, **together))]
            if name in GONE_ON_WITH:
                only_checkpoint(folder / f"{name}-1", folder / f"{name}-2{AFTER}")
                words += [(f"{name}-2{AFTER}", planned(models[name], rows, request=RESUMES, **together))]
        for name, plan in words:
            write_json(folder / f"{name}.json", plan)
        subprocess.run(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                str(HERE / "many_runs.py"),
                *(str(folder / word) for name, _ in words for word in (f"{name}.json", name)),
            ],
            check=True, env=os.environ | {"PYTHONPATH": str(HERE.parents[1]), "ADAPTFT_HOME": str(folder / "home")},
        )  # fmt: skip
    return folder


def report(folder, name):
    return read_json(RunReport, folder / name / "report.json", error=TrainingError, what="report", fix="")


def require_same_curve(found, expected, times=1):
    assert [s.loss for s in found.steps] == pytest.approx([s.loss for s in expected.steps], rel=times * 1e-5)
    norms = [s.gradient_norm for s in expected.steps]
    assert [s.gradient_norm for s in found.steps] == pytest.approx(norms, rel=times * 1e-4)
    assert [s.num_tokens for s in found.steps] == [s.num_tokens for s in expected.steps]
    assert found.initial_eval_loss == pytest.approx(expected.initial_eval_loss, rel=1e-5)
    assert found.final_eval_loss == pytest.approx(expected.final_eval_loss, rel=times * 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_follow_the_losses_of_one(name, runs):
    times = 100 if name == "fp8" else 1
    require_same_curve(report(runs, f"{name}-2"), report(runs, f"{name}-1"), times)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_leave_the_files_of_one(name, runs):
    for place in ("", "checkpoint-2"):
        one, two = runs / f"{name}-1" / place, runs / f"{name}-2" / place
        states = {p.name for p in two.glob("rng_state_*.pth")}
        assert {p.name for p in two.iterdir()} - states == {p.name for p in one.iterdir()} - {"rng_state.pth"}
        (weights,) = one.glob("*.safetensors")
        expected, found = load_file(weights), load_file(two / weights.name)
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            assert found[key].dtype == tensor.dtype
            assert (found[key] - tensor).abs().max() < (1e-3 if name == "fp8" else 1e-4), key  # a step of Adam is 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", GONE_ON_WITH)
def test_two_ranks_go_on_where_one_stopped(name, runs):
    found = report(runs, f"{name}-2{AFTER}")
    assert any(note.startswith("Went on from") for note in found.notes)
    require_same_curve(found, report(runs, f"{name}-1"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "full", "lora"])
def test_one_rank_goes_on_where_two_stopped(name, runs, models, rows, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(runs / "home"))
    folder = only_checkpoint(runs / f"{name}-2", runs / f"{name}-1-from-two")
    found = train(planned(models[name], rows, request=RESUMES, **RUNS[name][0]), folder)
    require_same_curve(found, report(runs, f"{name}-1"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"adapters": AdapterKernels(fused=True)}, "fused adapters"),
        ({"optimizer": {"name": "adamw_8bit"}}, "adamw_8bit keeps states"),
        ({"method": {"modules_to_save": ("lm_head",)}}, "modules_to_save lm_head makes copies of one tied table"),
        ({}, None),
    ],
    ids=["fused adapters", "8-bit states", "a trained copy of a tied head", "nothing"],
)
def test_what_cannot_be_sharded_is_refused(tiny_qwen2, rows, changed, said):
    plan = planned(tiny_qwen2, rows, num_ranks=2, parts=(2, 1), **changed)
    if said is None:
        ranks.require_possible(plan, on_gpu=False)
        return
    with pytest.raises(TrainingError, match=said) as caught:
        ranks.require_possible(plan, on_gpu=False)
    assert str(caught.value).count("\n") == 1
    replicas = planned(tiny_qwen2, rows, num_ranks=2, strategy="ddp", parts=(2, 1), **changed)
    ranks.require_possible(replicas, on_gpu=False)


def test_a_rank_that_is_sent_its_weights_reads_none_and_takes_no_memory(tmp_path, monkeypatch, tiny_llama):
    wide = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = json.loads((tiny_llama / "config.json").read_text()) | wide
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("RANK", "1")
    before = psutil.Process().memory_info().rss
    plan = planned(tmp_path, tmp_path, num_ranks=2, parts=(2, 1), method=FULL)
    model = load_for_training(plan, tmp_path, has_weights=ranks.has_weights(plan.decisions))
    grown = psutil.Process().memory_info().rss - before
    assert sum(p.numel() * p.element_size() for p in model.parameters()) > 800 << 20
    assert grown < 80 << 20


@pytest.mark.parametrize(
    ("strategy", "changed", "expected"),
    [
        ("ddp", {}, None),
        ("fsdp2", {}, {"reshard_after_forward": True, "cpu_ram_efficient_loading": True}),
        ("zero3", {}, {"reshard_after_forward": True, "cpu_ram_efficient_loading": True}),
        ("zero2", {}, {"reshard_after_forward": False, "cpu_ram_efficient_loading": True}),
        (
            "fsdp2",
            {"method": {"base_storage": "nf4"}},
            {"reshard_after_forward": True, "cpu_ram_efficient_loading": False},
        ),
    ],
    ids=["ddp", "fsdp2", "zero3", "zero2", "nf4"],
)
def test_a_strategy_in_transformers_words(tiny_qwen2, rows, strategy, changed, expected):
    plan = planned(tiny_qwen2, rows, num_ranks=2, strategy=strategy, parts=(2, 1), **changed)
    found = ranks.arguments_of_ranks(plan, on_gpu=True)
    assert (found["ddp_backend"], found["ddp_timeout"], found["ddp_broadcast_buffers"]) == ("nccl", 1800, False)
    assert ranks.arguments_of_ranks(plan, on_gpu=False)["ddp_backend"] == "gloo"
    assert ranks.arguments_of_ranks(planned(tiny_qwen2, rows), on_gpu=True) == {}
    if expected is None:
        assert "fsdp" not in found
        return
    assert {name: found["fsdp_config"][name] for name in expected} == expected
    assert found["accelerator_config"] == {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


def test_shards_are_gathered_in_the_compute_type_and_gradients_added_in_fp32(tiny_qwen2, rows):
    plan = planned(tiny_qwen2, rows, num_ranks=2, parts=(2, 1), precision={"compute": "bf16"})
    policy = ranks.mixed_precision(plan)
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, torch.float32, None)


SHARING = Placement(strategy="fsdp2", gpu_indices=(0, 1), sequence_parallel_size=2)


@pytest.mark.parametrize(
    ("changed", "on_gpu", "said"),
    [
        ({}, False, "no kernels for the CPU"),
        ({"placement": dataclasses.replace(SHARING, strategy="ddp")}, True, "stands on FSDP2"),
        ({"attention": {"implementation": "varlen"}}, True, "sdpa only"),
        ({"packing": True}, True, "one document only"),
        (
            {"placement": dataclasses.replace(SHARING, gpu_indices=tuple(range(6)), sequence_parallel_size=3)},
            True,
            "64",
        ),
        ({}, True, None),
    ],
    ids=["on the CPU", "ddp", "varlen", "packed", "among three", "as it should be"],
)
def test_rows_are_shared_where_torch_can_and_refused_elsewhere(tiny_qwen2, rows, changed, on_gpu, said):
    placement = changed.pop("placement", SHARING)
    plan = planned(tiny_qwen2, rows, **({"packing": False} | changed))
    place = dataclasses.replace(plan.decisions.placement, value=placement)
    plan = dataclasses.replace(plan, decisions=dataclasses.replace(plan.decisions, placement=place))
    if said is None:
        ranks.require_possible(plan, on_gpu=on_gpu)
        return
    with pytest.raises(TrainingError, match=said) as caught:
        ranks.require_possible(plan, on_gpu=on_gpu)
    assert str(caught.value).count("\n") == 1


def test_ranks_that_share_rows_are_counted_once_for_the_batch():
    eight = Placement(strategy="fsdp2", gpu_indices=tuple(range(8)), sequence_parallel_size=2, nodes=2)
    assert (eight.num_gpus, eight.data_parallel_size, eight.num_ranks) == (16, 8, 16)


def test_the_time_that_ranks_wait_for_each_other_can_be_set(monkeypatch):
    assert ranks.timeout_seconds() == 1800
    monkeypatch.setenv(ranks.TIMEOUT_VARIABLE, "7200")
    assert ranks.timeout_seconds() == 7200
    monkeypatch.setenv(ranks.TIMEOUT_VARIABLE, "1h")
    with pytest.raises(RequestError, match="no number of seconds"):
        ranks.timeout_seconds()


def test_packed_weights_are_not_taken_for_broken_ones():
    packed, plain = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    packed.quant_state = "of bitsandbytes"
    for layer in (packed, plain):
        torch.nn.init.constant_(layer.weight, float("nan"))
    assert broken_weight(torch.nn.Sequential(packed)) is None
    assert broken_weight(torch.nn.Sequential(packed, plain)) == "1.weight"
