"""FP8 weights rounded for what their layers get."""

from __future__ import annotations

import pytest
import torch

from adaptft.kernels import rounding
from adaptft.kernels.quantize import quantize_rows
from adaptft.kernels.rounding import Inputs, quantize_rows_for


def a_layer(rows=48, columns=160, seed=0):
    """A weight and inputs of which some channels are far from zero for every token."""
    generator = torch.Generator().manual_seed(seed)
    mean = (
        torch.randn(columns, generator=generator)
        * torch.logspace(-2, 1, columns)[torch.randperm(columns, generator=generator)]
    )
    return torch.randn(rows, columns, generator=generator), Inputs(mean, torch.rand(columns, generator=generator) + 0.1)


def values(operand):
    return operand.values.double() * operand.scale


def mean_squared_error(weight, operand, inputs):
    """Of each output, for independent inputs of this mean and variance."""
    error = values(operand) - weight.double()
    return error.square() @ inputs.variance.double() + (error @ inputs.mean.double()).square()


def test_outputs_are_nearer_than_by_rounding_to_the_nearest():
    weight, inputs = a_layer()
    nearest, rounded = quantize_rows(weight), quantize_rows_for(weight, inputs)
    errors = [mean_squared_error(weight, operand, inputs) for operand in (nearest, rounded)]
    assert (errors[1] <= errors[0]).float().mean() > 0.8
    assert errors[1].mean() < 0.25 * errors[0].mean()
    bias = [((values(operand) - weight) @ inputs.mean.double()).abs().mean() for operand in (nearest, rounded)]
    assert bias[1] < 0.02 * bias[0]


def test_samples_agree_with_the_formula():
    weight, inputs = a_layer()
    rounded = quantize_rows_for(weight, inputs)
    noise = torch.randn(20_000, len(inputs.mean), generator=torch.Generator().manual_seed(1)).double()
    x = inputs.mean.double() + noise * inputs.variance.double().sqrt()
    measured = (x @ (values(rounded) - weight.double()).t()).square().mean(0)
    assert torch.allclose(measured, mean_squared_error(weight, rounded, inputs), rtol=0.1)


def test_every_weight_becomes_one_of_its_two_neighbours():
    weight, inputs = a_layer()
    rounded = quantize_rows_for(weight, inputs)
    grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    grid = grid[grid.isfinite()].unique()
    wanted = weight.double() / rounded.scale.double()
    above = grid[torch.searchsorted(grid, wanted.clamp(-448, 448))]
    below = grid[(torch.searchsorted(grid, wanted.clamp(-448, 448), right=True) - 1).clamp(min=0)]
    got = rounded.values.double()
    assert ((got == above) | (got == below)).all()
    assert 0.02 < (rounded.values.double() != quantize_rows(weight).values.double()).double().mean() < 0.5


def test_inputs_around_zero_are_rounded_for_to_the_nearest():
    weight, inputs = a_layer()
    weight[3] = 0
    nearest, rounded = (
        quantize_rows(weight),
        quantize_rows_for(weight, Inputs(torch.zeros_like(inputs.mean), inputs.variance)),
    )
    assert torch.equal(rounded.scale, nearest.scale)
    assert torch.equal(rounded.values.float(), nearest.values.float())


def test_a_layer_in_parts_is_rounded_as_in_one(monkeypatch):
    weight, inputs = a_layer()
    whole = quantize_rows_for(weight, inputs)
    monkeypatch.setattr(rounding, "WEIGHTS_ROUNDED_AT_A_TIME", 1000)
    parts = quantize_rows_for(weight, inputs)
    assert torch.equal(whole.values.view(torch.uint8), parts.values.view(torch.uint8))
    assert torch.equal(whole.scale, parts.scale)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_the_other_neighbour_of_any_number(size):
    wanted = (torch.rand(1000, generator=torch.Generator().manual_seed(1)) * 2 - 1) * 448 * size
    near = wanted.to(torch.float8_e4m3fn)
    other = rounding._other_neighbour(wanted, near).float()
    between = (torch.minimum(near.float(), other) <= wanted) & (wanted <= torch.maximum(near.float(), other))
    assert (between | (near.float() == wanted)).all()
    assert other.isfinite().all()
