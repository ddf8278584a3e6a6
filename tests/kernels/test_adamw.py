"""AdamW with bf16 weights that are rounded at random, on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from adaptft.kernels.adamw import RoundedAdamW, round_at_random


def _parameter(*values):
    return nn.Parameter(torch.tensor(values, dtype=torch.bfloat16))


def _step(optimizer, parameter, gradient):
    parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def test_rounding_is_right_on_average_and_goes_to_neighbours_alone():
    generator = torch.Generator().manual_seed(0)
    values = torch.full((20_000,), 1 + 2**-9 + 2**-11)  # between 1 and 1 + 2^-7
    rounded = round_at_random(values, generator)
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    assert rounded.float().mean() == pytest.approx(float(values[0]), abs=2e-4)
    exact = torch.tensor([0.0, 1.5, -2.0, float("inf"), float("-inf")])
    assert torch.equal(round_at_random(exact, generator).float(), exact)
    assert round_at_random(torch.tensor([float("nan")]), generator).isnan()


def test_a_few_steps_are_those_of_torchs_adamw_but_for_rounding():
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(4000).bfloat16())
    theirs = nn.Parameter(ours.detach().float())
    settings = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    rounded, exact = RoundedAdamW([ours], **settings), torch.optim.AdamW([theirs], **settings)
    for _ in range(5):
        gradient = torch.randn(4000)
        ours.grad, theirs.grad = gradient.bfloat16(), gradient
        rounded.step()
        exact.step()
    difference = ours.detach().float() - theirs.detach()
    assert difference.abs().mean() < 2**-7 * theirs.abs().mean()
    assert abs(difference.mean()) < 4e-4


def test_updates_smaller_than_the_last_bit_count_as_their_sum():
    parameter = nn.Parameter(torch.ones(2000, dtype=torch.bfloat16))
    optimizer = RoundedAdamW([parameter], lr=1e-4, weight_decay=0.0)
    for _ in range(100):  # each is 1e-4, where half of a last bit is 2e-3
        _step(optimizer, parameter, 1.0)
    assert parameter.float().mean().item() == pytest.approx(1 - 0.01, abs=5e-4)


def test_gradients_are_divided_and_steps_left_out_as_for_a_scaler():
    one, other = _parameter(1.0, -2.0), _parameter(1.0, -2.0)
    plain, scaled = RoundedAdamW([one], lr=0.5, eps=1.0), RoundedAdamW([other], lr=0.5, eps=1.0)
    scaled.grad_scale = torch.tensor(4.0)
    _step(plain, one, 0.5)
    _step(scaled, other, 2.0)
    assert torch.equal(one, other)
    before = copy.deepcopy(scaled.state_dict())
    scaled.found_inf = torch.tensor(1.0)
    _step(scaled, other, 2.0)
    assert torch.equal(one, other)
    after = scaled.state_dict()
    assert all(torch.equal(after["state"][0][name], value) for name, value in before["state"][0].items())


def test_a_run_that_goes_on_rounds_as_one_that_was_not_cut():
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(500).bfloat16())
    optimizer = RoundedAdamW([parameter], seed=3)
    _step(optimizer, parameter, 0.1)
    again = nn.Parameter(parameter.detach().clone())
    resumed = RoundedAdamW([again], seed=3)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        _step(optimizer, parameter, 0.1)
        _step(resumed, again, 0.1)
    assert torch.equal(parameter, again)


def test_another_seed_rounds_otherwise():
    torch.manual_seed(0)
    first, second = (nn.Parameter(torch.linspace(1, 2, 500).bfloat16()) for _ in range(2))
    for parameter, seed in ((first, 3), (second, 4)):
        _step(RoundedAdamW([parameter], seed=seed), parameter, 0.1)
    assert not torch.equal(first, second)
    assert (first - second).abs().max() <= 2**-7
