"""Frozen linear layers in NF4 on the CPU, and in FP8 on the GPU, against what they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adaptft.kernels.converting import convert_nf4, convert_to_fp8, fits_fp8, is_named
from adaptft.kernels.quantize import quantize_rows

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.mark.parametrize("double_quant", [False, True])
def test_nf4_equals_bitsandbytes_forward_and_backward(double_quant):
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="the extra qlora is not installed")

    torch.manual_seed(0)
    linear = bitsandbytes.nn.Linear4bit(128, 256, quant_type="nf4", compute_dtype=torch.float32)
    linear.weight = bitsandbytes.nn.Params4bit(
        torch.randn(256, 128), requires_grad=False, quant_type="nf4", compress_statistics=double_quant
    )
    model = nn.Sequential(linear.to("cpu"))
    x = torch.randn(3, 5, 128, requires_grad=True)
    expected = model(x)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), x)
    assert convert_nf4(model) == 1
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_rows_come_back_from_fp8_within_its_precision():
    x = torch.randn(64, 256) * torch.logspace(-4, 4, 64).unsqueeze(1)
    quantized, scale = quantize_rows(x)
    error = (quantized.float() * scale - x).abs().amax(1) / x.abs().amax(1)
    assert error.max() < 2**-4  # e4m3 has three mantissa bits: half a step is 1/16 of the value


@pytest.mark.parametrize(("shape", "fits"), [((576, 1536), True), ((100, 64), False), ((64, 100), False)])
def test_only_multiples_of_sixteen_fit_fp8(shape, fits):
    assert fits_fp8(nn.Linear(*shape)) is fits


@pytest.mark.gpu
@needs_gpu
def test_fp8_forward_and_input_gradient_are_near_bf16():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024, device="cuda", dtype=torch.bfloat16)).requires_grad_(False)
    x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    expected = model(x)
    (expected_gradient,) = torch.autograd.grad(expected, x, upstream)
    assert convert_to_fp8(model) == 1
    got = model(x)
    (gradient,) = torch.autograd.grad(got, x, upstream)
    assert (got - expected).norm() / expected.norm() < 0.05
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 0.05


@pytest.mark.gpu
@needs_gpu
def test_packed_attention_equals_documents_one_by_one():
    from torch.nn.functional import scaled_dot_product_attention

    from adaptft.kernels.packed_attention import varlen_attention

    torch.manual_seed(0)
    lengths = [37, 200, 1, 18]
    total = sum(lengths)
    query = torch.randn(1, 8, total, 64, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn(1, 2, total, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
    packed, _ = varlen_attention(
        nn.Identity(), query, key, value, None, cu_seq_lens_q=boundaries, max_length_q=max(lengths), scaling=64**-0.5
    )
    for start, end in zip(boundaries[:-1].tolist(), boundaries[1:].tolist(), strict=True):
        alone = scaled_dot_product_attention(
            query[:, :, start:end], key[:, :, start:end], value[:, :, start:end], is_causal=True, enable_gqa=True
        )
        torch.testing.assert_close(packed[:, start:end], alone.transpose(1, 2), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("name", "named"),
    [("lm_head", True), ("model.lm_head", True), ("layers.0.mlp.gate", True), ("layers.0.mlp.gate_proj", False),
     ("layers.0.moe_mlp.gate", False)],
)  # fmt: skip
def test_names_are_endings_at_a_dot(name, named):
    assert is_named(name, ("mlp.gate", "lm_head")) is named


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed_copy", [False, True])
def test_a_weight_that_can_be_sharded_is_parameters_of_one_type_and_computes_the_same(dtype, transposed_copy):
    model = nn.Sequential(nn.Linear(64, 32, dtype=torch.bfloat16).requires_grad_(False))
    convert_to_fp8(model, transposed_copy=transposed_copy)
    x = torch.randn(16, 64, dtype=torch.bfloat16, requires_grad=True)
    expected = model(x)
    (of_x,) = torch.autograd.grad(expected.sum(), x)
    model[0].make_shardable(dtype)
    assert {p.dtype for name, p in model[0].named_parameters() if name != "bias"} == {dtype}
    assert not any(p.requires_grad for p in model.parameters())
    assert not list(model.buffers())
    assert torch.equal(model(x), expected)
    assert torch.equal(torch.autograd.grad(model(x).sum(), x)[0], of_x)


def test_memory_alone_is_reserved_for_weights_that_another_rank_sends():
    sent, there = (nn.Sequential(nn.Linear(64, 32).requires_grad_(False)) for _ in range(2))
    convert_to_fp8(sent, transposed_copy=True, has_weights=False)
    convert_to_fp8(there, transposed_copy=True)
    found, expected = sent[0].frozen().tensors, there[0].frozen().tensors
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in expected]
    assert all(t.is_contiguous() for t in found)
