"""Inputs of checkpointed layers in host memory: the same gradients, and nothing kept where it was."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from adaptft.training.offloading import HostStore

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, GPU])]


def _layers(device):
    torch.manual_seed(0)
    return nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(4)).to(device)


def _run(layers, x, call):
    for index, layer in enumerate(layers):
        x = call(layer, x, index)
    return x


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradients_are_those_without(device):
    layers = _layers(device)
    store = HostStore()
    recompute = partial(checkpoint, use_reentrant=False)
    for tokens in (32, 32, 48):  # a second pass uses the buffers again; another length makes new ones
        x = torch.randn(tokens, 64, device=device, requires_grad=True)
        plain = _run(layers, x, lambda layer, value, _: layer(value)).square().sum()
        expected = torch.autograd.grad(plain, [x, *layers.parameters()])
        aside = _run(
            layers, x, lambda layer, value, i: store.checkpoint(layer, value, inner=recompute, is_first=i == 0)
        )
        got = torch.autograd.grad(aside.square().sum(), [x, *layers.parameters()])
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)
    assert len(store.buffers) == 4


def test_a_pass_without_a_backward_leaves_no_trace():
    layers, store = _layers("cpu"), HostStore()
    recompute = partial(checkpoint, use_reentrant=False)
    call = lambda layer, value, i: store.checkpoint(layer, value, inner=recompute, is_first=i == 0)  # noqa: E731
    x = torch.randn(32, 64, requires_grad=True)
    _run(layers, x, call)
    torch.autograd.grad(_run(layers, x, call).sum(), x)
    assert len(store.waiting) == len(layers)


def test_the_device_keeps_no_input_of_a_layer():
    layers, store, inputs = _layers("cpu"), HostStore(), []
    recompute = partial(checkpoint, use_reentrant=False)

    def call(layer, value, index):
        inputs.append(weakref.ref(value))
        return store.checkpoint(layer, value, inner=recompute, is_first=index == 0)

    out = _run(layers, torch.randn(32, 64, requires_grad=True) * 1.0, call)
    gc.collect()
    assert [ref() for ref in inputs] == [None] * len(layers)
    out.sum().backward()
