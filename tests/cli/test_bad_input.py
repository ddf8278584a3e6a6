"""Bad input, end to end: two lines that say what is wrong and how to mend it, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from adapters_factory import random_adapter
from forked import Forked, when
from models_factory import change_json

from adaptft.cli import main

MACHINES = Path(__file__).parents[1] / "machines"
Make = Callable[[Path], object]


def row(number: int, times: int = 1, answer: str = "It is so.") -> str:
    question = f"What is {number} plus {number}? " * times
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": turns}) + "\n"


@pytest.fixture
def here(tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model to spoil and good rows; the cache is beside it."""
    work = tmp_path / "work"
    work.mkdir()
    shutil.copytree(tiny_qwen2, work / "model")
    (work / "good.jsonl").write_text("".join(map(row, range(24))))
    monkeypatch.chdir(work)
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return work


def call(capfd: pytest.CaptureFixture[str], words: str) -> tuple[int, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main(words.split())
    return int(end.value.code or 0), capfd.readouterr().err


def check(err: str, problem: str, fix: str) -> None:
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("Error: ")
    assert lines[1].startswith("Fix:   ")
    assert problem in lines[0]
    assert fix in lines[1]


def write(name: str, text: str) -> Make:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Make:
    return lambda folder: (folder / name).unlink()


def config(**changes: object) -> Make:
    return lambda folder: change_json(folder / "model/config.json", **changes)


def another_run(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/plan.json").write_text("{}")


DEEP = "[" * 100_000
FROM_GOOD = "train --model model --dataset good.jsonl --output_dir out --device cpu --max_steps 1"
FROM_BAD = "train --model model --dataset bad.jsonl --output_dir out --device cpu --max_length 256"
TRAIN = {
    "model folder without config": (remove("model/config.json"), FROM_GOOD, "it has no config.json", "tokenizer.json"),
    "without weights": (remove("model/model.safetensors"), FROM_GOOD, "no weights", "Copy or download"),
    "unknown alias": (None, FROM_GOOD.replace("model model", "model qwen-7"), "no model 'qwen-7'", "qwen-7b?"),
    "hub unreachable": (
        None, FROM_GOOD.replace("model model", "model acme/none"), "HF_HUB_OFFLINE is set", "HF_HUB_OFFLINE=0",
    ),
    "unsupported architecture": (
        config(model_type="t5", architectures=["T5ForConditionalGeneration"]), FROM_GOOD, "unsupported", "nearest",
    ),
    "no attention kernel for it": (
        config(model_type="mamba", architectures=["MambaForCausalLM"]), FROM_GOOD, "Cannot load the model", "config",
    ),
    "config of another model": (config(intermediate_size=256), FROM_GOOD, "other shapes", "belong together"),
    "config nested too deeply": (write("model/config.json", DEEP), FROM_GOOD, "nested too deeply", "Copy"),
    "tokenizer nested too deeply": (write("model/tokenizer.json", DEEP), FROM_GOOD, "the tokenizer in", "Copy"),
    "generation config broken": (write("model/generation_config.json", "{"), FROM_GOOD, "Cannot read", "Copy"),
    "data empty": (write("bad.jsonl", ""), FROM_BAD, "bad.jsonl is empty", "one row a line"),
    "data broken": (
        write("bad.jsonl", row(1) + '{"messages": [\n' + row(2)), FROM_BAD, "(bad.jsonl, line 2)", "max_bad_rows",
    ),
    "data list broken": (
        write("bad.json", '[\n{"text": "a"},\n{"text" "b"}\n]'), FROM_BAD.replace("jsonl", "json"), "line 3", "line",
    ),
    "columns unknown": (
        write("bad.jsonl", '{"quetion": "?", "anwser": "!"}\n'), FROM_BAD, "columns quetion, anwser", "question",
    ),
    "all rows too long": (
        write("bad.jsonl", row(1, 300) * 3), FROM_BAD, "all 3 are longer than max_length 256", "--truncation_strategy",
    ),
    "no token to train on": (write("bad.jsonl", row(1, answer="") * 3), FROM_BAD, "empty answer: 3", "answer"),
    "another run in the folder": (another_run, FROM_GOOD, "out holds another run", "--overwrite_output_dir"),
    "fp8 on a GPU without it": (
        None, f"{FROM_GOOD} --fp8 --machine {MACHINES}/v100.json".replace("--device cpu", ""),
        "has no FP8 tensor cores", "Leave --fp8 out",
    ),
    "a plan for another machine": (
        None, f"{FROM_GOOD} --machine {MACHINES}/v100.json".replace("--device cpu", ""),
        "made for another machine", "--machine",
    ),
    "module to save not there": (None, f"{FROM_GOOD} --modules_to_save nope", "nope is no module", "lm_head"),
    "checkpoint not there": (None, f"{FROM_GOOD} --resume_from_checkpoint gone", "no checkpoint gone", "auto"),
    "held-out data not there": (None, f"{FROM_GOOD} --val_dataset no.jsonl", "no.jsonl does not exist", "good.jsonl?"),
    "output under a file": (None, FROM_GOOD.replace("out ", "good.jsonl/x "), "is a file", "another --output_dir"),
    "output name too long": (None, FROM_GOOD.replace("out ", f"{'a' * 300} "), "name too long", "255 bytes"),
    "model name too long": (None, FROM_GOOD.replace("model model", f"model {'a' * 300}"), "name too long", "Shorten"),
    "data name too long": (None, FROM_GOOD.replace("good", "a" * 300), "name too long", "Shorten"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words", "problem", "fix"), TRAIN.values(), ids=TRAIN.keys())
def test_training_refuses(make: Make | None, words: str, problem: str, fix: str, here: Path, capfd) -> None:
    if make is not None:
        make(here)
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    status, err = call(capfd, words)
    assert status in (1, 2)
    check(err, problem, fix)
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


def test_a_disk_too_full_for_a_checkpoint(here: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(here)
    monkeypatch.setattr("adaptft.training.keeping.shutil.disk_usage", lambda _: usage._replace(free=1000))
    status, err = call(capfd, f"{FROM_GOOD} --save_steps 1")
    assert status == 1
    check(err, "1 KiB free", "Free some space")
    assert not (here / "out").exists()


def test_qlora_without_bitsandbytes(here: Path, capfd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptft.optional.is_installed", lambda name: name != "bitsandbytes")
    status, err = call(capfd, f"{FROM_GOOD} --train_type qlora")
    assert status == 1
    check(err, "bitsandbytes, which is not installed", 'pip install "adaptft[qlora]"')
    assert not (here / "out").exists()


def test_rows_over_max_length_are_counted_and_the_policy_is_named(here: Path, capfd) -> None:
    (here / "bad.jsonl").write_text("".join(row(i, 300 if i % 2 else 1) for i in range(8)))
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main([*FROM_BAD.split(), "--max_steps", "1"])
    assert not end.value.code
    said = " ".join(capfd.readouterr().out.split())
    assert "4 of 8 rows are longer than max_length 256" in said
    assert "left out (truncation_strategy delete)" in said


OTHERS = {
    "probe: too deep": (write("deep.json", DEEP), "probe --machine deep.json", 1, "nested too deeply", "Record"),
    "probe: a folder": (None, "probe --machine model", 1, "Is a directory", "Record"),
    "plan: too deep": (write("d.json", DEEP), "plan --model model --machine d.json", 1, "nested too deeply", "Record"),
    "plan: binary": (None, "plan --model model --machine model/model.safetensors", 1, "utf-8", "Record"),
    "plan: a GPU nobody makes": (None, "plan --model model --gpu nosuch", 2, "no GPU 'nosuch'", "All:"),
    "eval: too short": (None, "eval model --max_length 2 --max_rows 1", 1, "No row is left", "Raise it"),
    "eval: output nowhere": (None, "eval model --output no/x.json", 1, "no folder", "a folder that is there"),
    "eval: output a folder": (None, "eval model --output model", 1, "is a folder", "Name a file"),
    "export: no such adapter": (None, "export --format fp8 --adapters o/gone", 1, "no folder o/gone", "train"),
    "eval: no such adapter": (None, "eval nowhere/m --adapters gone", 1, "There is no folder gone", "train"),
    "eval: no such export": (None, "eval nowhere/m --exports gone", 1, "There is no folder gone", "export"),
    "infer: no such adapter": (None, "infer model --adapters gone --prompt hi", 1, "There is no folder gone", "train"),
    "serve: no such adapter": (None, "serve model --adapters a=gone --print", 1, "There is no folder gone", "train"),
    "plan: no such adapter": (None, "plan --model model --adapters gone", 1, "There is no folder gone", "train"),
    "eval: a model as adapter": (None, "eval model --adapters model", 1, "holds no adapter", "--exports"),
    "export: nothing": (None, "export --format merged", 2, "Nothing to export", "--adapters"),
    "export: a model as adapter": (None, "export --format merged --adapters model", 1, "holds no adapter", "--model"),
    "export: too deep": (
        write("d.json", DEEP), "export --format merged --model model --machine d.json", 1, "too deeply", "Record",
    ),
    "serve: port 70000": (None, "serve model --port 70000", 2, "70000 is out of range", "65535"),
    "serve: a file": (None, "serve good.jsonl", 1, "is a file", "folder"),
    "serve: an address elsewhere": (None, "serve model --host 192.0.2.1", 1, "Cannot serve on", "127.0.0.1"),
    "serve: generation config": (
        write("model/generation_config.json", "{"), "serve model --print", 1, "Cannot read", "Copy",
    ),
    "infer: a file": (None, "infer good.jsonl --prompt hi", 1, "is a file", "folder"),
    "infer: too long a name": (None, f"infer {'a' * 300} --prompt hi", 1, "name too long", "Shorten"),
    "infer: no tokens": (None, "infer model --prompt hi --max_new_tokens 0", 2, "out of range", "at least 1"),
    "download: a name": (None, "download модель/ü", 1, "There is no model folder or file модель/ü.", "add --hub hf"),
    "download: twice": (None, "download a b", 2, "unexpected extra argument (b)", "--help"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words", "status", "problem", "fix"), OTHERS.values(), ids=OTHERS.keys())
def test_other_commands_refuse(
    make: Make | None, words: str, status: int, problem: str, fix: str, here: Path, capfd
) -> None:
    if make is not None:
        make(here)
    before = set(here.rglob("*"))
    found, err = call(capfd, words)
    assert found == status, err
    check("\n".join(line for line in err.splitlines() if not line.startswith("  ")), problem, fix)
    assert set(here.rglob("*")) == before


SPOILT = {
    "cut off": (lambda folder: os.truncate(folder / "adapter_model.safetensors", 1000), "Cannot read"),
    "without weights": (remove("adapter_model.safetensors"), "has no adapter_model.safetensors"),
    "broken config": (write("adapter_config.json", "{"), "Cannot read"),
    "config is a list": (write("adapter_config.json", "[]"), "holds no JSON object"),
}


@pytest.mark.parametrize(("spoil", "problem"), SPOILT.values(), ids=SPOILT.keys())
@pytest.mark.parametrize(
    "words", ["infer run --prompt hi", "export --format merged --adapters run", "eval run --max_rows 1",
              "serve run --print"],
)  # fmt: skip
def test_a_spoilt_adapter(words: str, spoil: Make, problem: str, here: Path, capfd) -> None:
    run = random_adapter(here / "model", here / "run", is_ours="weights" in problem or "Cannot" in problem)
    if "config" in str(problem) or not (run / "adaptft.json").exists():
        (run / "adaptft.json").unlink(missing_ok=True)
    spoil(run)
    status, err = call(capfd, words)
    assert status == 1
    check("\n".join(line for line in err.splitlines() if not line.startswith("  ")), problem, "")


def test_ctrl_c_in_training_is_one_line_and_leaves_no_result(here: Path) -> None:
    words = [*FROM_GOOD.replace("max_steps 1", "max_steps 9999").split(), "--save_strategy", "no"]
    running = Forked(words, here / "log", {}, folder=here, waits_at=2)
    when(running, (here / "out" / "plan.json").exists)
    when(running, lambda: "step 1/" in running.log.read_text())
    running.send_signal(signal.SIGINT)
    status, said = running.ended()
    assert status == 130
    assert [line for line in said if line and not line.startswith("step")] == [
        "Stopping after this step, within 25 s, with a checkpoint; once more to stop at once.",
        "Interrupted before the first checkpoint: nothing is kept in out; start the run again.",
    ]
    assert not (here / "out").exists()
