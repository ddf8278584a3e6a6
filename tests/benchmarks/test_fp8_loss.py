"""benchmarks/fp8_loss.py: how runs become a verdict. The runs themselves need a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def fp8_loss(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import fp8_loss

    return fp8_loss


def _run(seed, compute, loss, way="lora"):
    same = {"model": "small", "dataset": "rows", "held_out": "others", "steps": 300, "batch": 4, "way": way}
    return same | {"seed": seed, "compute": compute, "initial_eval_loss": 3.0, "eval_loss": loss, "served_loss": 1.0}


PAIRS = [_run(0, "bf16", 2.0), _run(0, "fp8", 2.01), _run(1, "bf16", 1.0), _run(1, "fp8", 0.995), _run(2, "bf16", 1.5)]


def test_pairs_of_one_seed_are_compared_and_lone_runs_are_not(fp8_loss):
    row, served = fp8_loss.summarise(PAIRS)
    assert (row["way"], row["seeds"], row["bf16"], row["within"]) == ("lora", 2, 1.5, True)
    assert row["differences"] == pytest.approx([0.005, -0.005])
    assert (served["loss"], served["differences"]) == ("served", [0, 0])
    assert "+0.50% -0.50%" in fp8_loss.as_table([row])


def test_one_seed_beyond_a_hundredth_spoils_the_verdict_of_its_way_only(fp8_loss):
    worse = [_run(2, "fp8", 1.52), _run(0, "bf16", 1.0, "full"), _run(0, "fp8", 1.0, "full")]
    rows = fp8_loss.summarise(PAIRS + worse)
    verdicts = {(row["way"], row["loss"]): row["within"] for row in rows}
    assert [way for way, within in verdicts.items() if not within] == [("lora", "trained")]
    assert len(verdicts) == 4
    assert fp8_loss.as_table(rows).splitlines()[2].endswith("NO")


def test_without_a_pair_there_is_no_row(fp8_loss):
    assert fp8_loss.summarise([_run(0, "bf16", 1.0)]) == []
