"""The fused operators in a real (tiny) PEFT model: the same loss and gradients as PEFT's own layers."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, silu

from adaptft.kernels.adapted_linear import adapted_linear
from adaptft.kernels.adapted_mlp import adapted_mlp
from adaptft.kernels.fusing import fuse_adapted_layers, is_plain, left_unfused


def _adapted(path, **options):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "lora_dropout": 0.0} | options
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zeros at the start would hide errors in A's gradients
            nn.init.normal_(parameter, std=0.05)
    return model.train()


def _loss_and_gradients(model, tokens):
    model.zero_grad()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("family", ["tiny_qwen2", "tiny_qwen3", "tiny_llama"])
@pytest.mark.parametrize("rank", [8, 24])
def test_fused_layers_have_the_loss_and_gradients_of_pefts(request, family, rank):
    plain = _adapted(request.getfixturevalue(family), r=rank)
    fused = copy.deepcopy(plain)
    counts = fuse_adapted_layers(fused)
    num_layers = plain.config.num_hidden_layers
    assert (counts.mlps, counts.layers) == (num_layers, 7 * num_layers)
    assert left_unfused(fused) == ()
    tokens = torch.randint(0, 200, (2, 24))
    expected, expected_gradients = _loss_and_gradients(plain, tokens)
    loss, gradients = _loss_and_gradients(fused, tokens)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_adapters_save_as_pefts(tmp_path, tiny_qwen2):
    from safetensors.torch import load_file

    plain = _adapted(tiny_qwen2)
    fused = copy.deepcopy(plain)
    fuse_adapted_layers(fused)
    plain.save_pretrained(tmp_path / "plain")
    fused.save_pretrained(tmp_path / "fused")
    expected, got = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("plain", "fused"))
    assert expected.keys() == got.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_disabled_adapters_give_the_base(tiny_qwen2):
    plain = _adapted(tiny_qwen2)
    fused = copy.deepcopy(plain)
    fuse_adapted_layers(fused)
    tokens = torch.randint(0, 200, (1, 12))
    with torch.no_grad(), plain.disable_adapter(), fused.disable_adapter():
        torch.testing.assert_close(fused(input_ids=tokens).logits, plain(input_ids=tokens).logits)


@pytest.mark.parametrize("options", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_dropout_and_dora_are_left_to_peft(tiny_qwen2, options):
    model = _adapted(tiny_qwen2, **options)
    assert not any(is_plain(module) for module in model.modules())
    assert fuse_adapted_layers(model).layers == 0
    names = left_unfused(model)
    assert {"model.layers.0.mlp", "model.layers.3.self_attn.q_proj"} <= set(names)
    assert len(names) == 8 * model.config.num_hidden_layers, "seven layers and the MLP that they should have made"


def test_some_targets_only(tiny_qwen2):
    plain = _adapted(tiny_qwen2, target_modules=["q_proj", "v_proj", "down_proj"])
    fused = copy.deepcopy(plain)
    counts = fuse_adapted_layers(fused)
    assert (counts.mlps, counts.layers) == (0, 3 * plain.config.num_hidden_layers)
    assert left_unfused(fused) == ()
    tokens = torch.randint(0, 200, (1, 12))
    expected, got = _loss_and_gradients(plain, tokens), _loss_and_gradients(fused, tokens)
    torch.testing.assert_close(got[0], expected[0])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("tile_tokens", [0, 5])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_checkpointed_layer_gives_the_same(tiny_qwen2, compiled, tile_tokens):
    plain = _adapted(tiny_qwen2)
    fused = copy.deepcopy(plain)
    fuse_adapted_layers(fused, tile_tokens=tile_tokens)
    fused.gradient_checkpointing_enable({"use_reentrant": False})
    for layer in fused.base_model.model.model.layers if compiled else ():
        layer.compile(backend="aot_eager", fullgraph=True)
    tokens = torch.randint(0, 200, (1, 12))
    expected, got = _loss_and_gradients(plain, tokens), _loss_and_gradients(fused, tokens)
    torch.testing.assert_close(got[0], expected[0])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(got[1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def _inputs(generator, *shapes):
    return [(torch.randn(shape, generator=generator) * shape[-1] ** -0.5).requires_grad_() for shape in shapes]


def _relative_error(got, exact):
    return float((got.double() - exact).norm() / exact.norm())


def test_adapted_linear_against_float64():
    generator = torch.Generator().manual_seed(0)
    x, a, b = _inputs(generator, (24, 64), (32, 64), (48, 32))
    weight = torch.randn(48, 64, generator=generator) / 8
    upstream = torch.randn(24, 48, generator=generator)
    y, _ = adapted_linear(x, a, b, [weight], "dense", [32, 16])
    gradients = torch.autograd.grad(y, (x, a, b), upstream)
    exact = [t.detach().double().requires_grad_() for t in (x, a, b)]
    low = exact[0] @ exact[1].t() @ exact[2].t()
    exact_gradients = torch.autograd.grad(exact[0] @ weight.double().t() + low, exact, upstream.double())
    for got, expected in zip(gradients, exact_gradients, strict=True):
        assert _relative_error(got, expected) < 1e-6


@pytest.mark.parametrize("tile_tokens", [0, 16], ids=["at once", "in tiles"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("storage", "allowed"), [("dense", 1e-6), ("fp8", 0.08)])
def test_adapted_mlp_against_float64(activation, storage, allowed, tile_tokens):
    from adaptft.kernels.quantize import quantize_rows

    generator = torch.Generator().manual_seed(0)
    tokens, hidden, width = 40, 64, 96
    inputs = _inputs(generator, (tokens, hidden), (32, hidden), (2 * width, 16), (16, width), (hidden, 16))
    first, second = torch.randn(2 * width, hidden, generator=generator), torch.randn(hidden, width, generator=generator)
    weights = [[w] for w in (first, second)]
    if storage == "fp8":
        pairs = [quantize_rows(w) for w in (first, second)]
        weights = [[q, scale.t().contiguous()] for q, scale in pairs]
    upstream = torch.randn(tokens, hidden, generator=generator)
    y, *kept = adapted_mlp(*inputs, *weights, storage, activation, tile_tokens)
    ranges = 2 * [tokens if storage == "fp8" else 0]
    assert [len(tensor) for tensor in kept] == (5 * [0] if tile_tokens else [*3 * [tokens], *ranges])
    gradients = torch.autograd.grad(y, inputs, upstream)

    x, a, b, a_down, b_down = exact = [t.detach().double().requires_grad_() for t in inputs]
    z = x @ a.t()
    gate = x @ first[:width].double().t() + z[:, :16] @ b[:width].t()
    up = x @ first[width:].double().t() + z[:, 16:] @ b[width:].t()
    h = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}[activation](gate) * up
    expected = h @ second.double().t() + h @ a_down.t() @ b_down.t()
    assert _relative_error(y, expected) < allowed
    for got, want in zip(gradients, torch.autograd.grad(expected, exact, upstream.double()), strict=True):
        assert _relative_error(got, want) < allowed
