"""benchmarks/serving.py and export_quality.py: what is measured again and how it is told. The runs need an engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")


LOADS = [
    {
        "concurrency": n,
        "tokens_per_second": 100.0 * n,
        "median_first_token_seconds": 0.02,
        "median_request_seconds": 1.3,
    }
    for n in (1, 64)
]


def test_a_result_that_was_cut_off_is_measured_again_and_a_whole_one_is_not(monkeypatch, tmp_path):
    import serving
    from product import Deadline, Failed, Record

    asked = []

    def parts(what, options):
        asked.append(what)
        yield {"seconds_to_start": 60.0, "names": ("m",)}
        if what == "awq":
            raise Failed("the engine ended")
        yield {"loads": LOADS}
        yield {"check": {"passes": True, "said": []}}

    monkeypatch.setattr(serving, "serve_and_ask", parts)
    whole = {"model": "m", "what": "merged", "seconds_to_start": 50.0, "names": ["m"], "loads": LOADS, "check": None}
    record = Record(tmp_path / "r.json", {"served": [whole, whole | {"what": "fp8", "loads": LOADS[:1]}]})
    options = argparse.Namespace(
        model=Path("/models/m"), formats=["merged", "fp8", "awq"], no_adapters=True, concurrency=[1, 64]
    )
    failures = serving.measure(options, record, Deadline(float("inf")))
    assert asked == ["fp8", "awq"]
    assert [(found["what"], len(found["loads"])) for found in record.content["served"]] == [
        ("merged", 2), ("fp8", 2), ("awq", 0)
    ]  # fmt: skip
    assert failures == ["awq: the engine ended"]
    [row] = [serving.line(found, load) for found in record.content["served"] for load in found["loads"]][-1:]
    assert (row["served"], row["tokens/s"], row["check"]) == ("fp8", "6,400", "passes")


def test_nothing_is_begun_after_the_deadline(tmp_path):
    import serving
    from product import Deadline, Record

    options = argparse.Namespace(model=Path("/m"), formats=["fp8"], no_adapters=True, concurrency=[1])
    record = Record(tmp_path / "r.json", {})
    assert serving.measure(options, record, Deadline(-1.0)) == []
    assert record.content == {"served": []}


def test_the_rise_of_the_perplexity_stands_beside_what_others_published():
    import export_quality

    report = {
        "gate": {
            "fidelity": {
                "source_perplexity": 4.0, "perplexity": 4.2, "source_loss": 1.386, "loss": 1.435, "divergence": 0.1,
                "top1": 0.9, "num_tokens": 1000,
            },
            "lines": [{"passes": True}, {"passes": False}], "device": "cpu", "answers": [],
        },
        "bits_per_weight": 4.25, "num_quantized_modules": 210, "num_linear_modules": 211, "source_bytes": 269,
        "exported_bytes": 113, "calibration": "32 rows", "seconds": 100.0, "peak_host_bytes": 1,
    }  # fmt: skip
    found = export_quality.figures(report, {"compute_dtype": "fp32", "group_size": 64})
    assert (found["rise"], found["passes"]) == (0.05, False)
    run = {"model": "small", "adapters": None, "format": "awq", **found}
    assert "+5.0%" in export_quality.as_table([run])
    awq = next(row for row in export_quality.PUBLISHED if row["method"] == "AWQ")
    assert (awq["before"], awq["after"]) == (5.47, 5.60)
