"""Every Triton kernel against float64, at sizes that are no multiple of any block.

Errors are norms of differences over norms. bf16 rounds to 8 bits, an error of 2e-3 each time; e4m3 to 4, one of 3e-2 a
quantisation. What only moves bytes is exact.
"""

from __future__ import annotations

import pytest
import torch

from adaptft.kernels import gated, linear_cross_entropy, nf4, quantize, rounding, thin
from adaptft.kernels.trained_linear import trained_linear
from adaptft.kernels.trained_mlp import trained_mlp

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

DEVICE, DTYPE = "cuda", torch.bfloat16
BF16, FP8 = 3e-3, 3e-2


@pytest.fixture(autouse=True)
def random():
    torch.manual_seed(0)


def normal(*shape):
    """The same numbers on every machine, rounded to bf16."""
    return torch.randn(shape).bfloat16().to(DEVICE, DTYPE)


def factor(width):
    return (torch.rand(1, width) + 0.1).to(DEVICE)


def exact(operand):
    """What an operand stands for, in float64."""
    values = operand.values.double() if operand.scale is None else operand.values.float().double() * operand.scale
    return values.cpu()


def error(got, expected):
    got, expected = got.double().cpu(), expected.double().cpu()
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("has_factor", [False, True], ids=["plain", "with a factor"])
@pytest.mark.parametrize(("rows", "columns"), [(300, 3584), (37, 2500), (1, 16), (5, 18944)])
def test_rows_are_quantised(rows, columns, has_factor):
    x, folded = normal(rows, columns), factor(columns) if has_factor else None
    got = quantize.quantize_rows(x, folded)
    expected = x.double() if folded is None else x.double() * folded
    assert error(exact(got), expected) < FP8
    assert error(got.scale, expected.abs().amax(1, keepdim=True) / quantize.E4M3_MAX) < 1e-6


def test_rows_of_zeros_stay_zeros_and_views_are_read_as_they_lie():
    wide = normal(40, 96)
    wide[3] = 0
    got = quantize.quantize_rows(wide[:, 16:64])
    assert error(exact(got), wide[:, 16:64]) < FP8
    assert not exact(got)[3].any()


@pytest.mark.parametrize(("rows", "columns"), [(300, 500), (128, 128), (1, 17), (129, 2500)])
def test_fp8_weights_are_transposed_bit_for_bit(rows, columns):
    weight = normal(rows, columns).to(torch.float8_e4m3fn)
    got = quantize.transpose_fp8(weight)
    assert got.is_contiguous()
    assert torch.equal(got.view(torch.uint8), weight.view(torch.uint8).t())


def test_scales_are_powers_of_two_where_asked_for():
    x = normal(300, 3584) * torch.logspace(-3, 3, 300, device=DEVICE).unsqueeze(1)
    got, tight = quantize.quantize_rows(x, whole_powers=True), quantize.quantize_rows(x)
    assert (got.scale.frexp().mantissa == 0.5).all()
    assert ((tight.scale <= got.scale) & (got.scale < 2 * tight.scale)).all()
    assert error(exact(got), x) < FP8


@pytest.mark.parametrize(("rows", "columns"), [(300, 500), (128, 128), (1, 17), (129, 2500)])
def test_scales_move_into_values_while_they_are_transposed(rows, columns):
    values, scale = quantize.quantize_rows(normal(rows, columns), whole_powers=True)
    by_row = scale / scale.amax()
    got = quantize.rescale_transposed(values, by_row)
    assert got.is_contiguous()
    assert torch.equal(got.float(), (values.float() * by_row).t().to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(("rows", "columns"), [(300, 500), (64, 1536), (129, 48)])
def test_weights_are_rounded_for_their_inputs(rows, columns):
    weight = normal(rows, columns)
    inputs = rounding.Inputs(3 * torch.randn(columns), torch.rand(columns) + 0.1)
    there = rounding.Inputs(*(part.to(DEVICE) for part in inputs))
    got, expected = rounding.quantize_rows_for(weight, there), rounding.quantize_rows_for(weight.cpu(), inputs)
    assert error(got.scale, expected.scale) < 1e-6
    costs = []
    for operand in (got, expected, quantize.quantize_rows(weight)):
        off = exact(operand) - weight.double().cpu()
        costs.append(off.square() @ inputs.variance.double() + (off @ inputs.mean.double()).square())
    # a difference in the last bit changes what follows, and not how good it is
    assert float(costs[0].mean()) == pytest.approx(float(costs[1].mean()), rel=0.1)
    assert float(costs[0].mean()) < 0.5 * float(costs[2].mean())


@pytest.mark.parametrize("tokens", [512, 300], ids=["aligned", "any number"])
def test_trained_layers_that_share_an_input(tokens):
    x, weights, upstream = normal(tokens, 1024), [normal(n, 1024) / 32 for n in (512, 256)], normal(tokens, 768)
    inputs = [tensor.requires_grad_() for tensor in (x, *weights)]
    y = trained_linear(inputs[0], inputs[1:])[0]
    gradients = torch.autograd.grad(y, inputs, upstream)
    wide = [tensor.detach().double().cpu().requires_grad_() for tensor in inputs]
    expected = wide[0] @ torch.cat(wide[1:]).t()
    found = zip((y, *gradients), (expected, *torch.autograd.grad(expected, wide, upstream.double().cpu())), strict=True)
    for got, want in found:
        assert error(got.detach(), want.detach()) < 2 * FP8


@pytest.mark.parametrize("tokens", [512, 300], ids=["aligned", "any number"])
def test_a_trained_mlp(tokens):
    x, upstream = normal(tokens, 1024), normal(tokens, 1024)
    weights = [normal(*shape) * shape[1] ** -0.5 for shape in ((2560, 1024), (2560, 1024), (1024, 2560))]
    inputs = [tensor.requires_grad_() for tensor in (x, *weights)]
    y = trained_mlp(*inputs, "silu")[0]
    gradients = torch.autograd.grad(y, inputs, upstream)
    wide, gate, up, down = exact_inputs = [tensor.detach().double().cpu().requires_grad_() for tensor in inputs]
    expected = (torch.nn.functional.silu(wide @ gate.t()) * (wide @ up.t())) @ down.t()
    wanted = torch.autograd.grad(expected, exact_inputs, upstream.double().cpu())
    for got, want in zip((y, *gradients), (expected, *wanted), strict=True):
        assert error(got.detach(), want.detach()) < 3 * FP8


@pytest.mark.parametrize("transposed", [False, True], ids=["as it lies", "transposed"])
@pytest.mark.parametrize("nested", [False, True], ids=["scales in fp32", "scales in 8 bit"])
@pytest.mark.parametrize(("rows", "columns"), [([512, 256], 3584), ([37], 320), ([130, 65, 1], 64)])
def test_nf4_becomes_fp8(rows, columns, nested, transposed):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    layers = []
    for number in rows:
        packed, state = bitsandbytes.functional.quantize_4bit(
            normal(number, columns), blocksize=64, compress_statistics=nested, quant_type="nf4"
        )
        more = [state.state2.code, state.state2.absmax, state.offset] if nested else []
        layers.append([packed, state.absmax, *more])
    scale = nf4.fp8_row_scale(layers, rows, columns)
    expected = nf4.dequantize(layers, rows, columns, torch.float32)
    got = nf4.dequantize_to_fp8(layers, rows, columns, scale, transposed=transposed)
    assert got.is_contiguous()
    got = (got.t() if transposed else got).float() * scale.t()
    assert error(got, expected) < FP8


def ranges_of(gradient, steepest, hidden, folded):
    """What the backward pass gets in FP8."""
    largest = gradient.float().abs().amax(1, keepdim=True)
    return None if folded is None else gated.Ranges(folded, largest, steepest, hidden.scale)


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("tokens", "width"), [(200, 4480), (40, 2500), (1, 16), (3, 18944)])
def test_the_gated_activation_forward_and_backward(tokens, width, activation, fp8):
    gate_up, gradient = normal(tokens, 2 * width), normal(tokens, width)
    folded = factor(2 * width) if fp8 else None
    allowed = FP8 if fp8 else BF16
    got, steepest = gated.gated_forward(gate_up, activation, fp8=fp8)
    got_both, got_again = gated.gated_backward(
        gradient, gate_up, activation, ranges_of(gradient, steepest, got, folded)
    )
    gate_up, gradient = gate_up.double().cpu(), gradient.double().cpu()
    hidden = gated.gated_forward(gate_up, activation, fp8=False)[0].values
    both = gated.gated_backward(gradient, gate_up, activation, None)[0].values
    both = both if folded is None else both * folded.double().cpu()
    assert error(exact(got), hidden) < allowed
    assert error(exact(got_again), hidden) < allowed
    assert error(exact(got_both), both) < allowed
    if fp8:
        slopes = gated.gated_forward(gate_up, activation, fp8=True)[1]
        assert error(steepest, slopes) < 1e-5
        assert (got_both.scale.cpu() * quantize.E4M3_MAX >= both.abs().amax(1, keepdim=True) * 0.999).all()


def test_large_gates_neither_overflow_nor_vanish():
    gate = torch.tensor([[-300.0, -80.0, 80.0, 300.0]], device=DEVICE).to(DTYPE)
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    for activation in gated.ACTIVATIONS:
        hidden = gated.gated_forward(gate_up, activation, fp8=False)[0].values
        assert torch.allclose(hidden, gate.clamp(min=0), rtol=1e-2, atol=1e-6)
        both, _ = gated.gated_backward(torch.ones_like(gate), gate_up, activation, None)
        assert torch.isfinite(both.values).all()


@pytest.mark.parametrize("softcap", [None, 3.0], ids=["plain", "capped"])
@pytest.mark.parametrize(("tokens", "vocabulary"), [(37, 5000), (5, 152064), (3, 16), (64, 4096)])
def test_the_loss_of_logits_and_its_gradient(tokens, vocabulary, softcap):
    logits, labels = 4 * normal(tokens, vocabulary), torch.randint(vocabulary, (tokens,), device=DEVICE)
    labels[1], logits[2, labels[2]] = linear_cross_entropy.IGNORED, 60.0  # left out; sure of itself
    expected = logits.double().cpu().requires_grad_()
    loss, gradient = linear_cross_entropy.loss_and_gradient(logits, labels, softcap)
    capped = expected if softcap is None else softcap * torch.tanh(expected / softcap)
    total = torch.nn.functional.cross_entropy(capped, labels.cpu(), reduction="sum")
    total.backward()
    assert abs(loss.item() - total.item()) < 1e-4 * total.item()
    assert error(gradient, expected.grad) < BF16
    assert not gradient[1].any()


@pytest.mark.parametrize("rank", [16, 32, 64])
@pytest.mark.parametrize(("tokens", "width", "groups"), [(300, 2584, 1), (37, 1250, 2), (1, 16, 3)])
def test_thin_products_of_fp8_columns(tokens, width, groups, rank):
    wide = quantize.quantize_rows(normal(tokens, groups * width))
    by_column, by_row = normal(groups * width, rank), normal(tokens, groups * rank)
    across, down = thin.across_rows(wide, by_column, groups), thin.down_columns(wide, by_row, groups)
    parts = exact(wide).chunk(groups, dim=1)
    small = [part.double().cpu() for part in by_column.chunk(groups)]
    assert error(across, torch.cat([part @ own for part, own in zip(parts, small, strict=True)], dim=1)) < BF16
    small = [part.double().cpu() for part in by_row.chunk(groups, dim=1)]
    assert error(down, torch.cat([part.t() @ own for part, own in zip(parts, small, strict=True)])) < BF16


@pytest.mark.parametrize("rank", [16, 32, 64])
@pytest.mark.parametrize(("tokens", "width"), [(300, 2500), (37, 129), (1, 16)])
def test_low_rank_products_are_added_in_place(tokens, width, rank):
    y, z, b = normal(tokens, 2 * width), normal(tokens, 2 * rank), normal(2 * width, rank)
    halves = zip(y.double().chunk(2, dim=1), z.double().chunk(2, dim=1), b.double().chunk(2), strict=True)
    expected = torch.cat([own_y + own_z @ own_b.t() for own_y, own_z, own_b in halves], dim=1)
    thin.add_low_rank(y, z, b, groups=2)
    assert error(y, expected) < BF16
    largest = thin.add_low_rank_and_range(y, z[:, :rank], b)
    assert error(y, expected + z[:, :rank].double() @ b.double().t()) < 2 * BF16
    assert error(largest, y.abs().amax(1, keepdim=True)) < 2 * BF16
