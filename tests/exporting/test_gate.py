"""What the gate lets through, what it refuses, and what --accept-loss can and cannot keep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from exports import CPU_MACHINE

from adaptft.errors import ExportError
from adaptft.exporting.checking import FileCount
from adaptft.exporting.gate import check, judge
from adaptft.plans import ExportPlan
from adaptft.policy.format_table import FORMATS, MERGE_DIVERGENCE
from adaptft.policy.formats import plan_export
from adaptft.reports import AnswerPair, Fidelity, GateReport, MergeReport
from adaptft.requests import ExportFormat, ExportRequest
from adaptft.shapes import model_shape

CONFIG = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": True,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
NEAR = Fidelity(source_loss=2.0, loss=2.001, divergence=0.001, top1=0.99, num_tokens=500)
ANSWERS = (AnswerPair(prompt="Say red.", source="red", export="red"),)


def plan_of(format: ExportFormat, **options: Any) -> ExportPlan:
    return plan_export(CPU_MACHINE, model_shape(CONFIG, "a-model"), ExportRequest(format=format, model="m", **options))


def files(plan: ExportPlan, *, missing: int = 0, bits: float | None = None) -> FileCount:
    modules = frozenset(f"layer.{number}" for number in range(plan.num_compressed_modules - missing))
    return FileCount(compressed_modules=modules, bits_per_weight=bits or plan.bits_per_weight, num_bytes=1)


def verdict(
    plan: ExportPlan, fidelity: Fidelity = NEAR, found: FileCount | None = None, merge: MergeReport | None = None
) -> GateReport:
    return judge(plan, found or files(plan), fidelity, ANSWERS, merge, rows="3 rows", device="cpu")


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_like_its_source_passes_in_every_format(format: ExportFormat) -> None:
    plan = plan_of(format)
    gate = verdict(plan)
    assert (gate.failures, gate.was_accepted) == ((), False)
    assert check(plan, gate) == ()
    names = [line.measure for line in gate.lines]
    assert names[:3] == ["perplexity", "KL", "same top token"]
    assert names[3:] == ([] if format == "merged" else ["compressed layers", "bits a weight"])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("measure", ["perplexity", "KL", "same top token"])
def test_each_measure_alone_refuses(format: ExportFormat, measure: str) -> None:
    plan = plan_of(format)
    limits = FORMATS[format].limits
    worse = {
        "perplexity": {"loss": NEAR.source_loss + limits.loss_rise + 0.001},
        "KL": {"divergence": limits.divergence * 1.01},
        "same top token": {"top1": limits.top1 - 0.01},
    }[measure]
    gate = verdict(plan, replace(NEAR, **worse))
    assert gate.failures == (measure,)
    with pytest.raises(ExportError, match="too far from its source") as refusal:
        check(plan, gate)
    assert f"{measure} " in refusal.value.problem
    assert f"--format {FORMATS[format].safer}" in refusal.value.fix
    assert "--accept-loss" in refusal.value.fix
    assert ("--quant_n_samples 128" in refusal.value.fix) is FORMATS[format].needs_calibration


def test_a_layer_that_was_left_out_and_bits_that_are_too_many_refuse() -> None:
    plan = plan_of("fp8")
    assert verdict(plan, found=files(plan, missing=1)).failures == ("compressed layers",)
    assert verdict(plan, found=files(plan, bits=9.0)).failures == ("bits a weight",)


def test_a_merge_that_is_not_the_adapter_refuses() -> None:
    plan = plan_of("merged")
    far = MergeReport(base="original", parity=replace(NEAR, divergence=2 * MERGE_DIVERGENCE))
    assert verdict(plan, merge=far).failures == ("KL of merged and adapter",)
    assert verdict(plan, merge=MergeReport(base="original", parity=NEAR)).failures == ()


def test_accept_loss_keeps_and_marks() -> None:
    plan = plan_of("fp8", accept_loss=True)
    gate = verdict(plan, replace(NEAR, divergence=0.5))
    assert gate.was_accepted
    (note,) = check(plan, gate)
    assert "Kept by --accept-loss" in note
    assert "KL 0.5 (at most" in note


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_nothing_keeps_an_export_without_numbers(loss: float) -> None:
    with pytest.raises(ExportError, match="overflow"):
        verdict(plan_of("fp8", accept_loss=True), replace(NEAR, loss=loss))


def test_nothing_keeps_a_compression_that_did_not_happen() -> None:
    plan = plan_of("fp8", accept_loss=True)
    with pytest.raises(ExportError, match="Nothing was compressed"):
        verdict(plan, found=files(plan, missing=plan.num_compressed_modules))
