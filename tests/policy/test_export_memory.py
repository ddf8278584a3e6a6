"""How much of a model host memory holds while it is exported: the fastest and most exact way that fits."""

from __future__ import annotations

import pytest
from policy_machines import QWEN_7B, machine, qwen2

from adaptft.errors import DoesNotFit
from adaptft.facts import Machine, ModelShape
from adaptft.policy.export_memory import needed_bytes
from adaptft.policy.formats import plan_export
from adaptft.requests import ExportFormat, ExportRequest
from adaptft.units import GiB

QWEN_72B = qwen2(8192, 29568, 80, 64, 8)


def plan(here: Machine, model: ModelShape, format: ExportFormat = "fp8", *, is_qlora: bool = False):
    return plan_export(here, model, ExportRequest(format=format, model="m"), is_qlora=is_qlora)


@pytest.mark.parametrize("format", ["merged", "fp8", "int8", "awq", "gptq"])
def test_a_7b_is_exported_within_24_gib_of_host_memory(format: ExportFormat) -> None:
    for here in (machine(host_gib=22), machine("4090", host_gib=22)):
        made = plan(here, QWEN_7B, format)
        assert needed_bytes(QWEN_7B, made.compute_dtype, made.residence) <= 22 * GiB


def test_a_72b_is_exported_beside_one_80_gib_gpu() -> None:
    large, small = plan(machine("h100-80g", host_gib=220), QWEN_72B), plan(machine("h100-80g", host_gib=60), QWEN_72B)
    assert (large.compute_dtype, large.residence) == ("bf16", "once")
    assert (small.compute_dtype, small.residence) == ("bf16", "by_layer")
    assert needed_bytes(QWEN_72B, "bf16", "by_layer") < 16 * GiB
    assert "the weights stay on disk" in small.reasons["residence"]


@pytest.mark.parametrize(
    ("host_gib", "dtype", "residence"), [(80, "fp32", "twice"), (40, "fp32", "once"), (20, "fp32", "by_layer")]
)
def test_a_cpu_stays_in_fp32_and_gives_up_copies_first(host_gib: int, dtype: str, residence: str) -> None:
    made = plan(machine(host_gib=host_gib), QWEN_7B)
    assert (made.compute_dtype, made.residence) == (dtype, residence)


def test_merging_needs_one_copy_and_has_no_reason_to_explain() -> None:
    made = plan(machine(host_gib=20), QWEN_7B, "merged")
    assert (made.compute_dtype, made.residence, made.reasons["residence"]) == ("bf16", "once", "")


def test_what_has_to_be_whole_is_refused_where_it_does_not_fit() -> None:
    assert plan(machine(host_gib=20), QWEN_7B, is_qlora=True).compute_dtype == "bf16"
    with pytest.raises(DoesNotFit, match="of host memory; 10"):
        plan(machine(host_gib=10), QWEN_7B, is_qlora=True)


def test_nothing_fits_into_too_little() -> None:
    with pytest.raises(DoesNotFit, match=r"needs 1\d\.\d GiB of host memory; 5") as refusal:
        plan(machine(host_gib=5), QWEN_7B)
    assert "more memory" in refusal.value.fix
