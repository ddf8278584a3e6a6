"""FP8 operators of trained weights on the CPU, against float64 and against the layers that they stand for."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, silu

from adaptft.kernels import fp8_matmul
from adaptft.kernels.fusing_whole import train_in_fp8
from adaptft.kernels.quantize import next_power_of_two, quantize_rows, rescale_transposed
from adaptft.kernels.trained_linear import trained_linear
from adaptft.kernels.trained_mlp import trained_mlp

ALLOWED = 0.05
"""Two operands with three bits of mantissa each: some 0.026 times the square root of two."""


def _normal(generator, *shape):
    return torch.randn(shape, generator=generator)


def _error(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("value", [1.0, 0.75, 2**-20, 2**-20 * 1.0001, 3e-12, 448.0])
def test_a_power_of_two_is_the_smallest_that_is_not_smaller(value):
    found = float(next_power_of_two(torch.tensor([value])))
    assert torch.tensor(found).frexp().mantissa == 0.5
    assert value <= found < 2 * value


def test_scales_that_are_powers_of_two_move_without_a_second_rounding():
    generator = torch.Generator().manual_seed(0)
    x = _normal(generator, 48, 32) * torch.logspace(-2, 2, 48).unsqueeze(1)
    values, scale = quantize_rows(x, whole_powers=True)
    moved = rescale_transposed(values, scale / scale.amax())
    kept = (values.float() * scale).t()
    is_normal = kept.abs() >= 2**-6 * scale.amax()
    assert 0.3 < is_normal.float().mean() < 0.9
    assert torch.equal((moved.float() * scale.amax())[is_normal], kept[is_normal])
    assert (kept.t() - x).norm() / x.norm() < 0.035


@pytest.mark.parametrize("tokens", [48, 37], ids=["aligned", "any number"])
def test_each_of_the_three_matmuls_is_near_float64(tokens):
    generator = torch.Generator().manual_seed(0)
    x, w, dy = _normal(generator, tokens, 64), _normal(generator, 96, 64), _normal(generator, tokens, 96)
    dy *= torch.logspace(-3, 0, tokens).unsqueeze(1)  # tokens that matter little beside others
    quantized, weight = quantize_rows(x, whole_powers=True), fp8_matmul.quantize_weights((w[:32], w[32:]))
    gradient = fp8_matmul.quantize_gradient(dy, weight)
    found = {
        "y": fp8_matmul.forward(quantized, weight, torch.float32),
        "dx": fp8_matmul.input_gradient(gradient, weight, torch.float32),
        "dW": fp8_matmul.weight_gradient(gradient, quantized, weight.scale, torch.float32),
    }
    x, w, dy = x.double(), w.double(), dy.double()
    for name, exact in {"y": x @ w.t(), "dx": dy @ w, "dW": dy.t() @ x}.items():
        assert _error(found[name], exact) < ALLOWED, name


def test_layers_that_share_an_input_have_the_gradients_of_each():
    generator = torch.Generator().manual_seed(0)
    x = _normal(generator, 24, 64).requires_grad_()
    weights = [(_normal(generator, rows, 64) / 8).requires_grad_() for rows in (32, 16)]
    upstream = _normal(generator, 24, 48)
    y, *_ = trained_linear(x, weights)
    gradients = torch.autograd.grad(y, (x, *weights), upstream)
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *weights)]
    expected = exact[0] @ torch.cat(exact[1:]).t()
    assert _error(y, expected) < ALLOWED
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        assert _error(got, want) < ALLOWED


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_an_mlp_against_float64(activation):
    generator = torch.Generator().manual_seed(0)
    x = _normal(generator, 40, 64).requires_grad_()
    shapes = ((96, 64), (96, 64), (64, 96))
    weights = [(_normal(generator, *shape) * shape[1] ** -0.5).requires_grad_() for shape in shapes]
    upstream = _normal(generator, 40, 64)
    y, *_ = trained_mlp(x, *weights, activation)
    gradients = torch.autograd.grad(y, (x, *weights), upstream)
    wide, gate, up, down = exact = [tensor.detach().double().requires_grad_() for tensor in (x, *weights)]
    act = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}[activation]
    expected = (act(wide @ gate.t()) * (wide @ up.t())) @ down.t()
    assert _error(y, expected) < 0.08
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        assert _error(got, want) < 0.08


@pytest.mark.parametrize("family", ["tiny_qwen2", "tiny_qwen3", "tiny_llama"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_in_fp8_is_near_itself_in_gradients_and_keeps_its_parameters(request, family, compiled):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_pretrained(request.getfixturevalue(family), dtype=torch.float32)
    model = copy.deepcopy(plain)
    layers = len(model.model.layers)
    assert train_in_fp8(model, ("lm_head",)) == (7 * layers, 7 * layers)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    for layer in model.model.layers if compiled else ():
        layer.compile(backend="aot_eager", fullgraph=True)
    tokens = torch.randint(0, 200, (2, 19))
    for each in (plain, model):
        each(input_ids=tokens, labels=tokens).loss.backward()
    for (name, got), exact in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert got.grad is not None, name
        assert _error(got.grad, exact.grad.double()) < 0.25, name  # queries and keys, of random weights


def test_what_cannot_be_in_fp8_is_counted():
    class Odd(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Linear(64, 32), "b": nn.Linear(64, 30), "c": Odd(64, 32), "head": nn.Linear(64, 64)})
    assert train_in_fp8(model, ("head",)) == (1, 3)
