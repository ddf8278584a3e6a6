"""The fused operators on the GPU in every storage: against float64, twice the same, and in a compiled model."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, pad, scaled_dot_product_attention, silu

from adaptft.kernels import nf4
from adaptft.kernels.adapted_linear import adapted_linear
from adaptft.kernels.adapted_mlp import adapted_mlp
from adaptft.kernels.packed_attention import varlen_attention
from adaptft.kernels.quantize import quantize_rows, transpose_fp8

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

DEVICE, DTYPE = "cuda", torch.bfloat16
# storage: allowed error of one matmul, and of an MLP with its three. bf16 rounds by 2e-3, e4m3 by 3e-2 a quantisation;
# the weights are what is stored, but for NF4 that is quantised once more on its way.
STORAGES = {
    "dense": (5e-3, 1e-2), "fp8, one copy": (3.5e-2, 8e-2), "fp8, two copies": (3.5e-2, 8e-2),
    "nf4": (5e-3, 1e-2), "nf4_fp8": (5e-2, 1.1e-1),
}  # fmt: skip
ACTIVATIONS = {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}


@pytest.fixture(autouse=True)
def random():
    torch.manual_seed(0)


def normal(*shape, scale=1.0):
    """The same numbers on every machine, rounded to bf16."""
    return (torch.randn(shape) * scale).bfloat16().to(DEVICE, DTYPE)


def error(got, expected):
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    return float((got - expected).norm() / expected.norm())


def stored(storage, rows, columns):
    """A frozen weight: its tensors, their storage's name, and the weight they stand for in float64 on the CPU."""
    weights = [normal(number, columns, scale=columns**-0.5) for number in rows]
    if storage == "dense":
        return [torch.cat(weights)], "dense", torch.cat(weights).double().cpu()
    if storage.startswith("fp8"):
        values, scale = quantize_rows(torch.cat(weights))
        copies = [transpose_fp8(values)] if storage == "fp8, two copies" else []
        return [values, scale.t().contiguous(), *copies], "fp8", (values.float() * scale).double().cpu()
    layers = [_nf4_layer(weight) for weight in weights]
    scales = [nf4.fp8_row_scale(layers, rows, columns)] if storage == "nf4_fp8" else []
    exact = nf4.dequantize(layers, rows, columns, torch.float32).double().cpu()
    return [*(tensor for layer in layers for tensor in layer), *scales], storage, exact


def _nf4_layer(weight):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    packed, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    return [packed, state.absmax, state.state2.code, state.state2.absmax, state.offset]


def adapters(rank, groups, rows, columns):
    """a (G R, K) and b (N, R), ranks padded with zeros as the product pads them."""
    padded = max(16, 1 << (rank - 1).bit_length())
    a = torch.cat([pad(torch.randn(rank, columns) * columns**-0.5, (0, 0, 0, padded - rank)) for _ in range(groups)])
    b = pad(torch.randn(rows, rank) * 0.1, (0, padded - rank))
    return [tensor.to(DEVICE, DTYPE).requires_grad_() for tensor in (a, b)]


def one_adapter(rank, rows, columns):
    """The same as one for layers of ``rows`` outputs: each has its own columns of b (N, G R)."""
    a, b = adapters(rank, len(rows), sum(rows), columns)
    return a, torch.block_diag(*b.detach().split(rows)).requires_grad_()


def doubles(*tensors):
    return [tensor.detach().double().cpu().requires_grad_() for tensor in tensors]


def gradients(y, inputs, upstream):
    return torch.autograd.grad(y, inputs, upstream.to(y.device, y.dtype))


@pytest.mark.parametrize("rank", [8, 24, 64])
@pytest.mark.parametrize("rows", [[256, 64, 64], [2512]], ids=["a group", "one layer"])
@pytest.mark.parametrize("tokens", [37, 200])
@pytest.mark.parametrize("storage", STORAGES)
def test_adapted_linear(storage, tokens, rows, rank):
    columns, allowed = 320, STORAGES[storage][0]
    weight, name, exact_weight = stored(storage, rows, columns)
    x = normal(tokens, columns).requires_grad_()
    a, b = one_adapter(rank, rows, columns)
    upstream = normal(tokens, sum(rows))
    y, _ = adapted_linear(x, a, b, weight, name, rows)
    got = gradients(y, (x, a, b), upstream)

    exact = doubles(x, a, b)
    expected = exact[0] @ exact_weight.t() + exact[0] @ exact[1].t() @ exact[2].t()
    assert error(y, expected) < allowed
    for each, name, wanted in zip(got, ("x", "a", "b"), gradients(expected, exact, upstream), strict=True):
        assert error(each, wanted) < (allowed if name == "x" else STORAGES["dense"][0]), name


def an_mlp(storage, tokens, rank, columns=320, width=2496):
    first, name, exact_first = stored(storage, [width, width], columns)
    second, _, exact_second = stored(storage, [columns], width)
    inputs = [normal(tokens, columns).requires_grad_(), *adapters(rank, 2, 2 * width, columns)]
    inputs += adapters(rank, 1, columns, width)
    return inputs, first, second, name, exact_first, exact_second


@pytest.mark.parametrize("rank", [8, 24, 64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "tile_tokens"), [(37, 0), (200, 0), (200, 64)])
@pytest.mark.parametrize("storage", STORAGES)
def test_adapted_mlp(storage, tokens, tile_tokens, activation, rank):
    inputs, first, second, name, exact_first, exact_second = an_mlp(storage, tokens, rank)
    upstream = normal(tokens, 320)
    y = adapted_mlp(*inputs, first, second, name, activation, tile_tokens)[0]
    got = gradients(y, inputs, upstream)

    x, a, b, a_down, b_down = exact = doubles(*inputs)
    z = (x @ a.t()).chunk(2, dim=1)
    low = torch.cat([part @ half.t() for part, half in zip(z, b.chunk(2), strict=True)], dim=1)
    gate, up = (x @ exact_first.t() + low).chunk(2, dim=1)
    h = ACTIVATIONS[activation](gate) * up
    expected = h @ exact_second.t() + h @ a_down.t() @ b_down.t()
    allowed = STORAGES[storage][1]
    assert error(y, expected) < allowed
    for each, wanted in zip(got, gradients(expected, exact, upstream), strict=True):
        assert error(each, wanted) < allowed


@pytest.mark.parametrize("storage", STORAGES)
def test_the_operators_give_the_same_bits_twice(storage):
    inputs, first, second, name, *_ = an_mlp(storage, 200, 8)
    weight, kind, _ = stored(storage, [256, 64, 64], 320)
    pair, upstream = one_adapter(8, [256, 64, 64], 320), normal(200, 384)

    def once():
        y = adapted_mlp(*inputs, first, second, name, "silu", 0)[0]
        q, _ = adapted_linear(inputs[0], *pair, weight, kind, [256, 64, 64])
        of_mlp = gradients(y, inputs, upstream[:, :320].contiguous())
        return [y, q, *of_mlp, *gradients(q, (inputs[0], *pair), upstream)]

    for one, other in zip(once(), once(), strict=True):
        assert torch.equal(one, other)


def _loss_and_gradients(model, tokens):
    model.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def test_a_fused_compiled_checkpointed_model_has_the_loss_and_gradients_of_the_plain_one(tiny_qwen2):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from adaptft.kernels.fusing import fuse_adapted_layers
    from adaptft.training.checkpointing import compile_layers

    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.bfloat16)
    plain = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules="all-linear")).to(DEVICE)
    for name, parameter in plain.named_parameters():
        if "lora_B" in name:  # zeros at the start would hide errors in A's gradients
            nn.init.normal_(parameter, std=0.05)
    fused = copy.deepcopy(plain)
    fuse_adapted_layers(fused)
    fused.gradient_checkpointing_enable({"use_reentrant": False})
    compile_layers(fused.train())
    for tokens in (torch.randint(0, 200, (2, 100)), torch.randint(0, 200, (1, 48))):
        expected, expected_gradients = _loss_and_gradients(plain.train(), tokens.to(DEVICE))
        loss, got = _loss_and_gradients(fused, tokens.to(DEVICE))
        assert error(loss, expected) < 5e-3
        for name, gradient in expected_gradients.items():
            assert error(got[name], gradient) < 5e-2, name


@pytest.mark.parametrize("heads", [(8, 2), (4, 4)], ids=["grouped", "plain"])
def test_rows_that_are_one_document_each_attend_alike_dense_and_by_their_boundaries(heads):
    batch, tokens, head_dim = 3, 200, 64
    q, k, v = (normal(batch, number, tokens, head_dim).requires_grad_() for number in (heads[0], heads[1], heads[1]))
    edges = torch.arange(0, batch * tokens + 1, tokens, dtype=torch.int32, device=DEVICE)
    upstream = normal(batch, tokens, heads[0], head_dim)
    dense, _ = varlen_attention(nn.Identity(), q, k, v, None)
    bounded, _ = varlen_attention(nn.Identity(), q, k, v, None, cu_seq_lens_q=edges, max_length_q=256)
    exact = doubles(q, k, v)
    expected = scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True).transpose(1, 2)
    wanted = gradients(expected, exact, upstream)
    for out in (dense, bounded):
        assert error(out, expected) < 5e-3
        for each, right in zip(gradients(out, (q, k, v), upstream), wanted, strict=True):
            assert error(each, right) < 1e-2


def test_documents_of_a_pack_do_not_see_each_other():
    tokens, lengths = 200, [37, 100, 63]
    q, k, v = (normal(1, number, tokens, 64) for number in (8, 2, 2))
    edges = torch.tensor([0, 37, 137, 200], dtype=torch.int32, device=DEVICE)
    packed, _ = varlen_attention(nn.Identity(), q, k, v, None, cu_seq_lens_q=edges, max_length_q=128)
    apart = zip(*(t.split(lengths, dim=2) for t in (q, k, v)), strict=True)
    alone = [varlen_attention(nn.Identity(), *parts, None)[0] for parts in apart]
    assert error(packed, torch.cat(alone, dim=1)) < 5e-3
