"""benchmarks/faulty_runs.py: a loss that is gone is never taken for one that rounding changed."""

import math
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def a_run(steps=(2.0, 1.0), held_out=(3.0, 1.5), tensorboard=None):
    return {
        "steps": [[number, loss] for number, loss in enumerate(steps, 1)],
        "held_out": list(held_out),
        "tensorboard": tensorboard or {1: [2.0], 2: [1.0]},
    }


RUNS = {
    "the same": (a_run(), 0.0),
    "a step of another loss": (a_run(steps=(2.0, 1.25)), 0.25),
    "another evaluation": (a_run(held_out=(3.0, 1.875)), 0.25),
    "a step that a killed process had otherwise": (a_run(tensorboard={1: [2.0], 2: [1.0, 1.25]}), 0.25),
    "a step less": (a_run(steps=(2.0,)), math.inf),
    "a step less in TensorBoard": (a_run(tensorboard={1: [2.0]}), math.inf),
}


@pytest.mark.parametrize(("other", "apart"), RUNS.values(), ids=RUNS)
def test_losses_of_two_runs_are_so_far_apart(other, apart, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.syspath_prepend(BENCHMARKS)
    from faulty_runs import furthest

    assert furthest(a_run(), other) == apart
