"""The head meets only the rows that are trained: the same loss and gradients as over all rows."""

from __future__ import annotations

import pytest
import torch

from adaptft.plans import LossKernel
from adaptft.training.losses import _trained, install_loss

IGNORED = -100


def _model(path, kernel):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    install_loss(model, kernel, torch.float32)
    return model


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-qwen2"], ids=["a head of its own", "a tied head"])
def pair(request, tiny_model):
    """The same model with whole logits, and with a head that meets 5 trained rows at a time."""
    path = tiny_model(request.param)
    return _model(path, LossKernel(kernel="full")), _model(path, LossKernel(kernel="chunked", chunk_tokens=5))


def _labels(kept):
    labels = torch.randint(0, 200, (2, 16))
    labels[torch.rand(2, 16) >= kept] = IGNORED
    return labels


def _loss_and_gradients(model, tokens, labels):
    model.zero_grad()
    loss = model(input_ids=tokens, labels=labels)["loss"]
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_a_micro_batch_of_known_count_needs_no_wait_for_the_device(pair):
    """A tensor on torch's meta device has no values to wait for: reading one is an error."""
    labels = torch.full((32,), IGNORED, device="meta")
    assert _trained(labels, 7).shape == (7,)
    with pytest.raises(NotImplementedError):
        _trained(labels, None)


@pytest.mark.parametrize("kept", [1.0, 0.4, 0.05], ids=["all rows trained", "some", "hardly any"])
def test_only_trained_rows_meet_the_head_and_nothing_changes(pair, kept):
    torch.manual_seed(0)
    tokens, labels = torch.randint(0, 200, (2, 16)), _labels(kept)
    assert (labels != IGNORED).any()
    (expected, wanted), (loss, got) = (_loss_and_gradients(model, tokens, labels) for model in pair)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, gradient in wanted.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kept", [0.0, 0.4], ids=["none trained", "some"])
def test_rows_are_found_by_their_count_as_without(kept):
    torch.manual_seed(0)
    labels = _labels(kept).view(-1)
    assert _trained(labels, int((labels != IGNORED).sum())).equal(_trained(labels, None))


def test_a_batch_without_a_trained_token_has_no_loss_and_moves_nothing(pair):
    tokens = torch.randint(0, 200, (2, 16))
    loss, got = _loss_and_gradients(pair[1], tokens, torch.full((2, 16), IGNORED))
    assert loss.item() == 0
    assert all(gradient is not None and not gradient.any() for gradient in got.values())
