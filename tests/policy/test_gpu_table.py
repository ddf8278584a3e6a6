"""The table of GPUs against itself, slices of boards, and the links between them."""

import pytest
from policy_machines import ALPACA, QWEN_05B

from adaptft.errors import RequestError
from adaptft.facts import Ceilings, Link
from adaptft.policy import plan_training
from adaptft.policy.assumed import machine_of, machine_with, says_how_many
from adaptft.policy.ceilings import ceilings, table_ceilings
from adaptft.policy.collectives import Interconnect
from adaptft.policy.gpu_table import CHECKED, MEMORY, OTHER_VENDORS, ROWS, SHEET, GpuModel
from adaptft.policy.gpus import GPU_MODELS, gpu_named
from adaptft.policy.links import exchange_bytes_per_second
from adaptft.policy.prices import PRICES, price_key, price_of
from adaptft.requests import TrainRequest
from adaptft.units import GiB

TENSOR_CORES = [row for row in ROWS if row.compute_capability >= (7, 0)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_a_row_says_where_it_is_from_and_contradicts_no_other_column(row):
    assert row.source in (CHECKED, SHEET, MEMORY)
    assert (row.nvlink == "") == (row.nvlink_gb_per_second == 0)
    assert (row.bf16_tflops > 0) == (row.compute_capability >= (8, 0)) == (row.tf32_tflops > 0)
    assert (row.fp8_tflops > 0) == (row.compute_capability >= (8, 9))
    assert row.matmul_tflops is None or 0.3 * row.fp16_tflops < row.matmul_tflops < row.fp16_tflops


@pytest.mark.parametrize("row", TENSOR_CORES, ids=lambda row: row.key)
def test_tensor_cores_are_faster_than_the_rest(row):
    assert row.fp32_tflops <= max(row.tf32_tflops, row.fp32_tflops) < row.fp16_tflops


@pytest.mark.parametrize("row", [row for row in ROWS if "GeForce RTX 4" in row.names[0]], ids=lambda row: row.key)
def test_geforce_boards_of_ada_have_half_rate_tensor_cores(row):
    assert row.fp16_tflops == pytest.approx(2 * row.fp32_tflops, rel=0.01)
    assert row.fp8_tflops == pytest.approx(4 * row.fp32_tflops, rel=0.01)


def test_every_price_is_of_a_row_and_dated():
    assert set(PRICES) <= set(GPU_MODELS)
    assert all(price.date.startswith("202") and price.source for price in PRICES.values())


@pytest.mark.parametrize(
    ("name", "sm_count", "memory_gib"),
    [
        ("a100-80g:mig-3g.40gb", 42, 79.25 / 2),
        ("A100-80GB:3g.40gb", 42, 79.25 / 2),
        ("a100-40g:mig-1g.5gb", 14, 39.59 / 8),
        ("h100:mig-1g.20gb", 16, 79.19 / 4),
        ("h200:mig-2g.35gb", 32, 139.8 / 4),
        ("a30:mig-2g.12gb", 28, 11.75),
        ("h100-nvl:mig-3g.47gb", 60, 93.1 / 2),
        ("b200:mig-1g.23gb", 20, 178.36 / 8),
    ],
)
def test_a_mig_slice_has_its_part_of_the_board(name, sm_count, memory_gib):
    part = gpu_named(name)
    assert part.mig is not None
    assert (part.sm_count, part.memory_total_bytes) == (sm_count, pytest.approx(memory_gib * GiB, rel=1e-6))
    assert price_key(part) == f"{price_key(gpu_named(name.partition(':')[0]))}:mig-{part.mig.profile}"
    assert price_of(part, PRICES) is None


@pytest.mark.parametrize(
    ("name", "problem", "fix"),
    [
        ("a100-80g:mig-3g.20gb", "has no MIG profile 3g.20gb", "Did you mean --gpu a100-80g:mig-3g.40gb?"),
        ("l4:mig-1g.6gb", "NVIDIA L4 cannot be cut into MIG slices", "--gpu l4"),
        ("mi300x", "AMD Instinct MI300X: adaptft does not train on AMD yet", "NVIDIA"),
        ("M3 Ultra", "adaptft does not train on Apple yet", "NVIDIA"),
        ("a1000", "There is no GPU 'a1000'", "--gpu-file"),
        ("0xh100", "--gpus 0 is no number", "1 or more"),
    ],
)
def test_what_cannot_be_planned_for_is_refused_with_the_nearest(name, problem, fix):
    with pytest.raises(RequestError) as caught:
        machine_with(name)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_all_other_vendors_are_known_by_name():
    for name in OTHER_VENDORS:
        with pytest.raises(RequestError, match="does not train on"):
            gpu_named(name)


@pytest.mark.parametrize(("name", "count", "number"), [("8xh100", None, 8), ("8 x h100", 8, 8), ("2x 4090", None, 2)])
def test_a_number_stands_before_the_name(name, count, number):
    assert len(machine_with(name, count).gpus) == number


def test_a_name_says_how_many_or_does_not():
    assert says_how_many("8xh100")
    assert not says_how_many("4090")


def test_facts_from_memory_are_said_to_be():
    assert "The facts of NVIDIA GeForce RTX 4070 are from memory" in machine_with("4070").notes[1]
    assert len(machine_with("h100").notes) == 1


def test_two_numbers_contradict_each_other():
    with pytest.raises(RequestError, match="are 8 GPUs, and --gpus says 2"):
        machine_with("8xh100", 2)


@pytest.mark.parametrize(
    ("name", "joined", "gb_per_second"),
    [
        ("h200", None, 328.5),  # 329 GB/s measured between two H200
        ("a100-80g", None, 219),
        ("a100-pcie-80g", None, 22.1),  # a bridge is no matter of course
        ("a100-pcie-80g", "nvlink", 219),
        ("h100", "pcie", 44.1),
        ("4090", None, 12.6),  # no peer copies in the stock driver
        ("l4", None, 22.1),
    ],
)
def test_gpus_are_joined_as_they_are_sold(name, joined, gb_per_second):
    pair = machine_with(name, 2, joined)
    assert exchange_bytes_per_second(pair, (0, 1)) == pytest.approx(gb_per_second * 1e9, rel=0.01)


def test_nvlink_between_cards_that_have_none_is_refused():
    with pytest.raises(RequestError, match="NVIDIA L4 has no NVLink"):
        machine_with("l4", 2, "nvlink")


def test_one_gpu_exchanges_nothing_and_unknown_links_count_as_the_slowest():
    from dataclasses import replace

    four = machine_with("a100-80g", 4)
    assert exchange_bytes_per_second(four, (2,)) is None
    unknown = replace(four, links=())
    assert exchange_bytes_per_second(unknown, (0, 1)) == pytest.approx(4 * 1.97 * 4 * 0.4e9, rel=0.01)
    oddly = replace(four, links=(Link(a=0, b=1, path="NV", nvlink_width=1, peer_access=True),))
    assert exchange_bytes_per_second(oddly, (0, 1)) == pytest.approx(25e9 * 0.73)
    measured = replace(four, ceilings=replace(table_ceilings(GPU_MODELS["a100-80g"]), link_bytes_per_second=2e11))
    assert exchange_bytes_per_second(measured, (0, 1)) == 2e11
    ring = Interconnect(ranks=4, nodes=1, link_rate=1e9, network_rate=None)
    assert ring.reduce_seconds(1e9) == pytest.approx(1.5, rel=1e-4)


def test_replicas_over_pcie_are_slower_than_over_nvlink():
    request = TrainRequest(model="m", train_type="full")
    fast, slow = (plan_training(machine_with("h100", 8, j), QWEN_05B, ALPACA, request) for j in ("nvlink", "pcie"))
    assert fast.speed.step_seconds < slow.speed.step_seconds


def test_measured_ceilings_of_the_device_replace_the_table():
    from dataclasses import replace

    whole = machine_with("a10")
    slow = Ceilings(
        matmul_flops={"bf16": 1e12, "fp32": 1e12}, memory_bytes_per_second=6e11, source="measured here on 2026-11-30"
    )
    measured = replace(whole, ceilings=slow)
    request = TrainRequest(model="m", train_type="lora")
    table, here = (plan_training(m, QWEN_05B, ALPACA, request) for m in (whole, measured))
    assert here.speed.step_seconds > 10 * table.speed.step_seconds
    assert here.speed.mfu is None  # no peak was measured
    on_cpu = replace(measured, ceilings=replace(slow, device="cpu"))
    assert ceilings(on_cpu, on_cpu.gpus[0]).source == "the table of GPUs"
    assert ceilings(on_cpu, None).source == "measured here on 2026-11-30"
    assert plan_training(replace(on_cpu, gpus=()), QWEN_05B, ALPACA, request).speed is not None


def test_rates_that_nobody_measured_give_no_speed():
    from dataclasses import replace

    some = Ceilings(matmul_flops={"fp32": 1e12}, memory_bytes_per_second=6e11, source="measured here")
    made = plan_training(
        replace(machine_with("a10"), ceilings=some), QWEN_05B, ALPACA, TrainRequest(model="m", train_type="lora")
    )
    assert made.speed is None


def test_a_gpu_from_a_file_is_planned_with_its_own_rates():
    row = GpuModel(
        key="x1", names=("NVIDIA X1",), compute_capability=(9, 0), sm_count=100, memory_gib=60,
        memory_gb_per_second=3000, fp32_tflops=50, tf32_tflops=400, fp16_tflops=800, bf16_tflops=800, fp8_tflops=1600,
    )  # fmt: skip
    made = plan_training(machine_of(row, 2), QWEN_05B, ALPACA, TrainRequest(model="m", train_type="lora"))
    assert made.speed is not None
    assert made.decisions.placement.value.num_gpus == 2
    assert made.cost is None
    assert made.machine.notes[0].endswith("as the file describes them, and an ordinary host, are assumed.")
