"""What layers get from the first tokens of the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from training_plans import packs
from transformers import AutoModelForCausalLM

from adaptft.plans import CALIBRATED_AT_A_TIME
from adaptft.training.batches import Rows
from adaptft.training.calibration import inputs_of_layers

PACKS = Rows(packs([[20 + i % 7, 30 - i % 11] for i in range(10)]))


@pytest.fixture
def model(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


def first_rows(num_tokens):
    rows, seen = [], 0
    while seen < num_tokens:
        rows.append(PACKS[len(rows)])
        seen += len(rows[-1]["input_ids"])
    return rows


def test_mean_and_variance_of_what_every_layer_gets(model):
    found = inputs_of_layers(model, PACKS, 100)
    linears = [layer for layer in model.model.modules() if isinstance(layer, torch.nn.Linear)]
    assert set(found) == set(linears)
    layer, got = model.model.layers[1].mlp.down_proj, []
    hook = layer.register_forward_pre_hook(lambda _, x: got.append(x[0][0]))
    for row in first_rows(100):
        with torch.no_grad():
            inputs = {name: torch.from_numpy(row[name])[None] for name in ("input_ids", "position_ids")}
            model(**inputs, use_cache=False)
    hook.remove()
    x = torch.cat(got).double()
    assert torch.allclose(found[layer].mean.double(), x.mean(0), atol=1e-5)
    assert torch.allclose(found[layer].variance.double(), x.var(0, correction=0), rtol=1e-3, atol=1e-6)


def test_the_model_is_left_as_it_was(model):
    inputs_of_layers(model, PACKS, 100)
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert inputs_of_layers(model, PACKS, 0) == {}


def test_a_long_row_is_cut(model):
    ids = np.arange(CALIBRATED_AT_A_TIME + 50) % 100 + 3
    row = {"input_ids": ids, "labels": ids, "position_ids": np.arange(len(ids))}
    found = [
        inputs_of_layers(model, rows, 3000)[model.model.layers[1].mlp.down_proj]
        for rows in ([row], [{k: v[:CALIBRATED_AT_A_TIME] for k, v in row.items()}])
    ]
    assert torch.equal(found[0].mean, found[1].mean)
