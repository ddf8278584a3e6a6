"""A run that begins with an adapter there is: its weights, its rank, alpha and targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from adapters_factory import random_adapter
from safetensors.torch import load_file

from adaptft.cli import main

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def first(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of rank 4 with alpha 12 on two layers' names, as another run left it."""
    folder = tmp_path_factory.mktemp("first") / "adapter"
    return random_adapter(tiny_qwen2, folder, r=4, lora_alpha=12, target_modules=["q_proj", "up_proj"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [{"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}."} for n in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ADAPTFT_CACHE", str(tmp_path / "home"))
    return tmp_path


def call(words: str, *more: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([*words.split(), *map(str, more)])
    return int(end.value.code or 0)


TRAIN = "train --dataset rows.jsonl --device cpu --max_length 128 --report_to none"


def test_a_run_begins_with_the_weights_rank_alpha_and_targets(here, first, tiny_qwen2, capfd):
    learning = "--learning_rate 1e-12 --max_steps 1 --output_dir second"
    assert call(TRAIN, "--model", tiny_qwen2, "--adapters", first, *learning.split()) == 0
    config = json.loads((here / "second/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], sorted(config["target_modules"])) == (4, 12, ["q_proj", "up_proj"])
    before, after = load_file(first / WEIGHTS), load_file(here / "second" / WEIGHTS)
    assert before.keys() == after.keys()
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=1e-6)
    plan = json.loads((here / "second/plan.json").read_text())
    assert f"begins with the adapter in {first}" in plan["decisions"]["method"]["reason"]
    assert any(
        "Began with the adapter" in note for note in json.loads((here / "second/report.json").read_text())["notes"]
    )
    assert f"| Began with | {first} |" in (here / "second/README.md").read_text()


def test_its_weights_learn_on(here, first, tiny_qwen2):
    learning = "--learning_rate 1e-2 --max_steps 3 --lr_scheduler_type constant --output_dir second"
    assert call(TRAIN, "--model", tiny_qwen2, "--adapters", first, *learning.split()) == 0
    before, after = load_file(first / WEIGHTS), load_file(here / "second" / WEIGHTS)
    assert all((before[name] != after[name]).any() for name in before)


REFUSED = {
    "no folder": (["--adapters", "gone"], "There is no folder gone", "the folder that `adaptft train` wrote"),
    "no adapter": (["--adapters", "."], "holds no adapter", "the folder that `adaptft train` wrote"),
    "another rank": (["--adapters", "{first}", "--lora_rank", "8"], "lora_rank 8 contradicts", "Leave lora_rank out"),
    "other targets": (["--adapters", "{first}", "--target_modules", "v_proj"], "which has q_proj up_proj", "Leave"),
    "all of the model": (["--adapters", "{first}", "--train_type", "full"], "without the adapter", "Merge it first"),
    "two beginnings": (
        ["--adapters", "{first}", "--resume_only_model", "true", "--resume_from_checkpoint", "x/checkpoint-1"],
        "both name the weights", "Leave one of them out",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("words", "problem", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_gone_on_with_is_refused(words, problem, fix, here, first, tiny_qwen2, capfd):
    words = [word.format(first=first) for word in words]
    assert call(f"{TRAIN} --max_steps 1 --output_dir out", "--model", tiny_qwen2, *words) != 0
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2, said
    assert problem in said[0]
    assert fix in said[1]
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern, which a run cannot go on with"),
        ({"bias": "all"}, "bias, which a run cannot go on with"),
    ],
)
def test_an_adapter_of_uneven_parts_is_refused(options, problem, here, tiny_qwen2, capfd):
    random_adapter(tiny_qwen2, here / "odd", is_ours=False, **options)
    assert call(f"{TRAIN} --adapters odd --max_steps 1", "--model", tiny_qwen2) == 1
    assert problem in capfd.readouterr().err


@pytest.mark.parametrize("is_ours", [True, False])
def test_the_adapter_of_another_model_is_refused(is_ours, here, tiny_qwen2, tiny_moe, capfd):
    random_adapter(tiny_moe, here / "other", is_ours=is_ours, target_modules=["q_proj"])
    assert call(f"{TRAIN} --adapters other --max_steps 1 --output_dir out", "--model", tiny_qwen2) == 1
    said = capfd.readouterr().err
    assert ("is another model" if is_ours else "does not fit the model") in said
    assert not list(here.glob("out/*"))


def test_a_folder_that_is_an_adapter_offers_what_train_takes(here, first, tiny_qwen2, capfd):
    """The way out that the error names works: it is typed in as it stands."""
    assert call(f"{TRAIN} --max_steps 1", "--model", first) == 1
    fix = capfd.readouterr().err.splitlines()[1]
    words = fix.removeprefix("Fix:   Use ").partition(", or")[0].replace(tiny_qwen2.name, str(tiny_qwen2), 1)
    assert call(f"{TRAIN} --max_steps 1 --output_dir out", *words.split()) == 0
