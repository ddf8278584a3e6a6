"""What must answer at once pulls in nothing heavy."""

import os

import pytest
from source_tree import run_python

HEAVY = (
    "torch",
    "transformers",
    "datasets",
    "peft",
    "accelerate",
    "numpy",
    "pandas",
    "pyarrow",
    "bitsandbytes",
    "vllm",
)
LIGHT = [
    "adaptft",
    "adaptft.artifacts",
    "adaptft.cli",
    "adaptft.cli.infer",
    "adaptft.cli.options",
    "adaptft.cli.plan",
    "adaptft.cli.planning",
    "adaptft.cli.screens",
    "adaptft.cli.train",
    "adaptft.cli.serve",
    "adaptft.facts",
    "adaptft.hardware",
    "adaptft.models.catalog",
    "adaptft.optional",
    "adaptft.parsing",
    "adaptft.plans",
    "adaptft.policy",
    "adaptft.requests",
    "adaptft.policy.endpoints",
    "adaptft.serving",
    "adaptft.shapes",
]


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_imports_nothing_heavy(module):
    done = run_python("-c", f"import {module}, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def fastest(*words: str, tries: int = 3) -> float:
    """Seconds of a core, which other work on the machine does not change much."""
    seconds = []
    for _ in range(tries):
        start = sum(os.times()[2:4])
        done = run_python(*words)
        seconds.append(sum(os.times()[2:4]) - start)
        assert done.returncode == 0, done.stderr
    return min(seconds)


@pytest.mark.parametrize("words", [["--help"], ["probe", "--help"], ["train", "--help"], ["--version"]])
def test_help_answers_within_a_third_of_a_second_on_a_machine_as_fast_as_its_python(words):
    """0.3 s where an empty Python starts in 15 ms; slower machines get as many times as much."""
    allowed = 0.3 * max(1.0, fastest("-c", "pass") / 0.015)
    assert fastest("-m", "adaptft", *words) < allowed
