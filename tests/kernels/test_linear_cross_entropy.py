"""The chunked loss against the plain formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from adaptft.kernels.linear_cross_entropy import chunked_cross_entropy


def plain(hidden, weight, labels, softcap):
    logits = hidden @ weight.t()
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    return cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("chunk_tokens", [1, 8, 37, 64])
def test_loss_and_gradients_equal_the_plain_formula_in_float64(chunk_tokens, softcap):
    torch.manual_seed(0)
    hidden = torch.randn(37, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 50, (37,))
    labels[::3] = -100
    expected = plain(hidden, weight, labels, softcap)
    loss = chunked_cross_entropy(hidden.float(), weight.float(), labels, chunk_tokens=chunk_tokens, softcap=softcap)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    for got, want in zip(
        torch.autograd.grad(loss * 0.3, (hidden, weight)),
        torch.autograd.grad(expected * 0.3, (hidden, weight)),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_untrained_tokens_have_no_gradient_and_no_loss():
    hidden = torch.randn(5, 8, requires_grad=True)
    loss = chunked_cross_entropy(hidden, torch.randn(11, 8), torch.full((5,), -100), chunk_tokens=2)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert loss == 0
    assert not gradient.any()


def test_without_gradients_only_the_loss_is_computed():
    hidden, weight, labels = torch.randn(9, 8), torch.randn(11, 8), torch.randint(0, 11, (9,))
    with torch.no_grad():
        loss = chunked_cross_entropy(hidden, weight, labels, chunk_tokens=4)
    torch.testing.assert_close(loss, plain(hidden, weight, labels, None))
    assert not loss.requires_grad
