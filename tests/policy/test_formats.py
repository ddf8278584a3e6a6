"""What an export plan decides, and why."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from adaptft.errors import AdaptftError, DoesNotFit, ExportError, MachineError, OutputError, RequestError
from adaptft.facts import Cpu, Disk, Gpu, HostMemory, Machine, ModelShape, Software
from adaptft.policy.format_table import FORMATS
from adaptft.policy.formats import plan_export
from adaptft.requests import ExportRequest
from adaptft.shapes import model_shape
from adaptft.units import GiB

SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
}  # fmt: skip
EVEN = {**SMOLLM2, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}
SHARED_EXPERTS = {
    "model_type": "qwen2_moe", "hidden_size": 512, "intermediate_size": 1408, "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 1024, "num_experts": 12, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
    "mlp_only_layers": [5], "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 8320, "tie_word_embeddings": False, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def machine(*gpus: tuple[str, tuple[int, int]], memory: float = 64, disk: float | None = None) -> Machine:
    return Machine(
        gpus=tuple(
            Gpu(index=i, name=name, compute_capability=capability, memory_total_bytes=24 * GiB,
                memory_free_bytes=23 * GiB)
            for i, (name, capability) in enumerate(gpus)
        ),
        cpu=Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2),
        memory=HostMemory(total_bytes=128 * GiB, available_bytes=int(memory * GiB)),
        software=Software(python="3.11"),
        disk=None if disk is None else Disk(path="/data", total_bytes=100 * GiB, free_bytes=int(disk * GiB)),
    )  # fmt: skip


def shape(config: dict[str, Any], **departures: Any) -> ModelShape:
    return model_shape({**config, **departures}, "a-model")


def request(format: Any, **options: Any) -> ExportRequest:
    return ExportRequest(format=format, model="a-model", **options)


@pytest.mark.parametrize(
    ("hidden", "intermediate", "size", "reason", "ignored"),
    [
        (512, 1536, 128, "the largest of 128, 64, 32 that divides the layers' inputs (512, 1536)", ["lm_head"]),
        (576, 1536, 64, "(576, 1536)", ["lm_head"]),
        (576, 1504, 32, "(576, 1504)", ["lm_head"]),
        (576, 1500, 64, "down_proj (1500 inputs) stay in 16 bit", ["lm_head", r"re:.*\.mlp\.down_proj$"]),
    ],
)
def test_the_group_is_the_largest_that_divides_all_inputs(
    hidden: int, intermediate: int, size: int, reason: str, ignored: list[str]
) -> None:
    heads = {"num_attention_heads": hidden // 64, "num_key_value_heads": 1, "head_dim": 64}
    model = shape(SMOLLM2, hidden_size=hidden, intermediate_size=intermediate, **heads)
    plan = plan_export(machine(), model, request("gptq"))
    assert plan.group_size == size
    assert reason in plan.reasons["group_size"]
    assert list(plan.ignored_modules) == ignored


@pytest.mark.parametrize("format", ["fp8", "int8"])
def test_eight_bit_formats_have_no_groups_and_take_any_width(format: str) -> None:
    plan = plan_export(machine(), shape(SMOLLM2, intermediate_size=1501), request(format))
    assert plan.group_size is None
    assert plan.num_compressed_modules == 30 * 7
    assert "any width" in plan.reasons["group_size"]


# what the files of these exports of SmolLM2-135M weighed, in MB (embeddings in bf16)
@pytest.mark.parametrize(
    ("format", "megabytes"), [("merged", 269), ("fp8", 160), ("int8", 160), ("awq", 113), ("gptq", 113)]
)
def test_the_predicted_size_is_that_of_the_file(format: str, megabytes: int) -> None:
    plan = plan_export(machine(), shape(SMOLLM2), request(format))
    assert plan.predicted_bytes / 1e6 == pytest.approx(megabytes, rel=0.02)


def test_routers_gates_and_head_stay_in_16_bit_and_experts_are_counted_one_by_one() -> None:
    plan = plan_export(machine(), shape(SHARED_EXPERTS), request("fp8"))
    modules = [
        *("model.layers.1.mlp.gate", "model.layers.3.mlp.shared_expert_gate", "lm_head"),
        *("model.layers.1.mlp.experts.3.gate_proj", "model.layers.1.mlp.shared_expert.gate_proj"),
        *("model.layers.0.mlp.gate_proj", "model.layers.0.self_attn.q_proj"),
    ]
    ignored = [name for name in modules if any(_matches(pattern, name) for pattern in plan.ignored_modules)]
    assert ignored == ["model.layers.1.mlp.gate", "model.layers.3.mlp.shared_expert_gate", "lm_head"]
    # 6 x 4 in attention, 4 dense x 3, 2 x 3 shared, 2 x 12 x 3 in experts
    assert plan.num_compressed_modules == 24 + 12 + 6 + 72
    assert "12 experts" in plan.reasons["experts"]


def test_uneven_layers_of_experts_are_ignored_by_their_own_name() -> None:
    model = shape(SHARED_EXPERTS, moe_intermediate_size=250, intermediate_size=1410)
    patterns = plan_export(machine(), model, request("gptq")).ignored_modules
    names = {
        "model.layers.1.mlp.experts.11.down_proj": True,
        "model.layers.1.mlp.shared_expert.down_proj": False,
        "model.layers.0.mlp.down_proj": True,
        "model.layers.1.mlp.experts.11.up_proj": False,
    }
    for name, ignored in names.items():
        assert any(_matches(pattern, name) for pattern in patterns) is ignored, name


def test_awq_of_experts_has_no_zero_points() -> None:
    assert plan_export(machine(), shape(SMOLLM2), request("awq")).symmetric is False
    plan = plan_export(machine(), shape(SHARED_EXPERTS), request("awq"))
    assert plan.symmetric
    assert "routed experts" in plan.reasons["symmetric"]


@pytest.mark.parametrize(
    ("gpu", "format", "warning"),
    [
        (("NVIDIA A10", (8, 6)), "fp8", "NVIDIA A10 (compute capability 8.6) serves this as weight-only"),
        (("Tesla T4", (7, 5)), "fp8", "Tesla T4 (compute capability 7.5) serves this as weight-only"),
        (("Tesla V100", (7, 0)), "fp8", "Tesla V100 (compute capability 7.0) cannot serve this format"),
        (("Tesla V100", (7, 0)), "awq", "Tesla V100 (compute capability 7.0) cannot serve this format"),
        (("NVIDIA L4", (8, 9)), "fp8", None),
        (("Tesla T4", (7, 5)), "int8", None),
        (("Tesla V100", (7, 0)), "merged", None),
    ],
)
def test_a_format_this_gpu_cannot_serve_as_it_is_gets_a_warning(
    gpu: tuple[str, tuple[int, int]], format: str, warning: str | None
) -> None:
    warnings = plan_export(machine(gpu), shape(EVEN), request(format)).warnings
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]


def test_the_machine_that_serves_decides_what_can_be_served() -> None:
    here, target = machine(("NVIDIA B200", (10, 0))), machine(("Tesla T4", (7, 5)))
    assert plan_export(here, shape(EVEN), request("int8"), target=target).warnings == ()
    assert "--format fp8 or awq" in plan_export(here, shape(EVEN), request("int8")).warnings[0]
    with pytest.raises(ExportError, match="NVIDIA B200"):
        plan_export(target, shape(EVEN), request("int8"), target=here)


# GPU and format -> refused, warned of, or served as it is; and the better formats that are named
FOR_GPU: dict[tuple[str, str], tuple[str, str]] = {
    ("a10", "fp8"): ("warned", "--format int8 or awq"),
    ("a10", "fp8-block"): ("warned", "--format int8 or awq"),
    ("a10", "awq"): ("served", ""),
    ("a10", "int8"): ("served", ""),
    ("t4", "fp8"): ("warned", "--format int8 or awq"),
    ("t4", "gptq"): ("served", ""),
    ("v100-16g", "fp8"): ("refused", "--format merged"),
    ("v100-16g", "awq"): ("refused", "--format merged"),
    ("v100-16g", "int8"): ("refused", "--format merged"),
    ("v100-16g", "merged"): ("served", ""),
    ("l4", "fp8"): ("served", ""),
    ("h100", "fp8-block"): ("served", ""),
    ("h100", "int8"): ("served", ""),
    ("b200", "int8"): ("refused", "--format fp8 or awq"),
    ("5090", "int8"): ("refused", "--format fp8 or awq"),
    ("b200", "fp8"): ("served", ""),
}


@pytest.mark.parametrize(("gpu", "format"), FOR_GPU)
def test_a_format_for_a_gpu_is_served_warned_of_or_refused_with_a_better_one(gpu: str, format: str) -> None:
    outcome, better = FOR_GPU[gpu, format]
    asked = request(format, for_gpu=gpu)
    if outcome == "refused":
        with pytest.raises(ExportError, match="No kernel serves") as refusal:
            plan_export(machine(), shape(EVEN), asked)
        assert better in refusal.value.fix
        return
    warnings = plan_export(machine(), shape(EVEN), asked).warnings
    assert [better in warning for warning in warnings] == [True] * (outcome == "warned")


def test_a_better_format_for_experts_is_never_int8() -> None:
    (warning,) = plan_export(machine(), shape(SHARED_EXPERTS), request("fp8", for_gpu="a10")).warnings
    assert warning.endswith("Better there: --format awq.")


def test_blocks_of_fp8_are_counted_in_the_size() -> None:
    plan = plan_export(machine(), shape(EVEN), request("fp8-block"))
    assert plan.bits_per_weight == 8 + 16 / 128**2
    assert plan.group_size is None
    assert "128 x 128" in plan.reasons["group_size"]


@pytest.mark.parametrize(
    ("flags", "reason"), [((), "which only emulates bf16"), (("avx512_bf16",), "rounding is then the format's alone")]
)
def test_why_a_cpu_computes_in_fp32(flags: tuple[str, ...], reason: str) -> None:
    here = machine()
    here = replace(here, cpu=replace(here.cpu, flags=flags))
    plan = plan_export(here, shape(SMOLLM2), request("fp8"))
    assert plan.compute_dtype == "fp32"
    assert reason in plan.reasons["compute_dtype"]


def test_shapes_that_the_fast_kernel_refuses_are_named() -> None:
    (warning,) = plan_export(machine(), shape(SMOLLM2), request("gptq")).warnings
    assert "q_proj" in warning
    assert "down_proj" not in warning  # 1536 inputs, 576 outputs: divisible by 128 and 64
    assert plan_export(machine(), shape(EVEN), request("gptq")).warnings == ()


@pytest.mark.parametrize(
    ("here", "device", "dtype", "rows", "length"),
    [
        (machine(), "cpu", "fp32", 32, 256),
        (machine(memory=2.45), "cpu", "fp32", 32, 256),
        (machine(("NVIDIA H200", (9, 0))), "cuda", "bf16", 256, 2048),
        (machine(("Tesla T4", (7, 5))), "cuda", "fp32", 256, 2048),
    ],
)
def test_device_and_type_follow_the_machine(here: Machine, device: str, dtype: str, rows: int, length: int) -> None:
    plan = plan_export(here, shape(SMOLLM2), request("gptq"))
    assert (plan.device, plan.compute_dtype, plan.num_calibration_rows, plan.max_length) == (
        *(device, dtype, rows, length),
    )


def test_what_the_user_set_is_obeyed() -> None:
    options = {"group_size": 32, "quant_n_samples": 8, "max_length": 64, "device": "cpu"}
    plan = plan_export(machine(("NVIDIA H200", (9, 0))), shape(SMOLLM2), request("awq", **options))
    assert (plan.group_size, plan.num_calibration_rows, plan.max_length, plan.device) == (32, 8, 64, "cpu")
    assert plan.reasons["group_size"] == "as asked for"


@pytest.mark.parametrize(("stored", "saved"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "bf16")])
def test_the_result_has_the_16_bit_type_of_its_base(stored: str, saved: str) -> None:
    plan = plan_export(machine(), shape(SMOLLM2, torch_dtype=stored), request("merged"))
    assert plan.saved_dtype == saved


QUANTIZED = replace(shape(SMOLLM2), quantization="awq")
ODD = shape(SMOLLM2, hidden_size=500, intermediate_size=1500, num_attention_heads=5, num_key_value_heads=5)
REFUSALS: dict[str, tuple[Machine, ModelShape, ExportRequest, type[AdaptftError], str, str]] = {
    "int8 for Blackwell": (
        machine(), shape(SMOLLM2), request("int8", for_gpu="b200"),
        ExportError, "NVIDIA B200 (compute capability 10.0)", "--format fp8",
    ),
    "int8 of experts": (
        machine(), shape(SHARED_EXPERTS), request("int8"), ExportError, "cannot load it back", "--format fp8",
    ),
    "uneven blocks": (
        machine(), shape(SMOLLM2), request("fp8-block"), ExportError, "576 x 1536", "--format fp8",
    ),
    "a GPU that does not exist": (
        machine(), shape(SMOLLM2), request("fp8", for_gpu="z9"), RequestError, "no GPU 'z9'", "Did you mean",
    ),
    "a group the layers' inputs are not divisible by": (
        machine(), shape(SMOLLM2), request("awq", group_size=128),
        RequestError, "does not divide the 576 inputs of gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj", "64",
    ),
    "a group without kernels": (
        machine(), shape(SMOLLM2), request("gptq", group_size=48), RequestError, "no kernel for group_size 48", "64",
    ),
    "a group for a format without groups": (
        machine(), shape(SMOLLM2), request("fp8", group_size=128), RequestError, "has no groups", "awq",
    ),
    "no layer that 32 divides": (
        machine(), ODD, request("awq"), ExportError, "their inputs (500, 1500) are not divisible by 32", "fp8",
    ),
    "a compressed source": (
        machine(), QUANTIZED, request("fp8"), ExportError, "compressed already (awq)", "16-bit model",
    ),
    "a full disk": (
        machine(disk=0.1), shape(SMOLLM2), request("fp8"), OutputError, "/data has 102 MiB free", "--output_dir",
    ),
    "too little memory": (
        machine(memory=0.1), shape(SMOLLM2), request("merged"), DoesNotFit, "102 MiB are available", "more memory",
    ),
    "a GPU that is not there": (
        machine(), shape(SMOLLM2), request("gptq", device="cuda"), MachineError, "no GPU", "--device",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_with_the_way_out(case: str) -> None:
    here, model, asked, kind, problem, fix = REFUSALS[case]
    with pytest.raises(kind) as refusal:
        plan_export(here, model, asked)
    assert problem in refusal.value.problem
    assert fix in refusal.value.fix
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("here", "options", "rows", "reason"),
    [
        (machine(("NVIDIA H200", (9, 0))), {}, (64, 1024), "weights are rounded for what these put into their layers"),
        (machine(), {}, (0, 0), "--quant_n_samples 16 rounds for the data"),
        (machine(), {"quant_n_samples": 16}, (16, 256), "as asked for"),
        (machine(memory=2.25), {"quant_n_samples": 16}, (0, 0), "memory never has the whole model"),
    ],
    ids=["on a GPU", "a CPU is slow", "asked for", "by layer"],
)
def test_fp8_is_rounded_for_rows_where_a_look_at_them_costs_little(here, options, rows, reason) -> None:
    plan = plan_export(here, shape(SMOLLM2), request("fp8", **options))
    assert (plan.num_calibration_rows, plan.max_length) == rows
    assert reason in plan.reasons["calibration"]


def test_merging_asks_for_no_calibration_and_no_gpu() -> None:
    plan = plan_export(machine(("NVIDIA H200", (9, 0))), shape(SMOLLM2), request("merged"))
    assert (plan.device, plan.num_calibration_rows, plan.ignored_modules) == ("cpu", 0, ())


def test_every_format_says_where_it_can_be_served() -> None:
    assert set(FORMATS) == {"merged", "fp8", "fp8-block", "int8", "awq", "gptq"}
    assert all(facts.servable_on and facts.kernels for facts in FORMATS.values())


def _matches(pattern: str, name: str) -> bool:
    return bool(re.match(pattern[3:], name)) if pattern.startswith("re:") else pattern == name


@pytest.mark.parametrize(
    ("target", "wanted", "warned"),
    [(machine(), "fp8", True), (machine(("NVIDIA L4", (8, 9))), "fp8", False), (machine(), "int8", False)],
)
def test_an_fp8_export_for_a_cpu_is_said_to_be_slow_there(target: Machine, wanted: Any, warned: bool) -> None:
    plan = plan_export(machine(), model_shape(SMOLLM2, "m"), ExportRequest(format=wanted, model="m"), target=target)
    assert any("FP8 is emulated on a CPU" in warning for warning in plan.warnings) is warned
