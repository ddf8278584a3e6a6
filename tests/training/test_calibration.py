"""What layers get from the first tokens of the data, on the way of a base to FP8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from training_plans import a_plan, packs
from transformers import AutoModelForCausalLM

from adaptft.kernels.converting import convert_to_fp8
from adaptft.kernels.frozen_linear import FrozenLinear
from adaptft.plans import Placement
from adaptft.training.adapters import passage_of
from adaptft.training.batches import Rows
from adaptft.training.calibration import ROW_TOKENS, Passage, convert_in_passing
from adaptft.training.checkpointing import decoder_layers

PACKS = Rows(packs([[20 + i % 7, 30 - i % 11] for i in range(10)]))
CPU = torch.device("cpu")


@pytest.fixture
def base(tiny_llama):
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


@pytest.fixture
def model(base):
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", lora_dropout=0.5))


def passed(model, rows=PACKS, num_tokens=100, convert=None):
    """What every layer was converted for, by name, in that order."""
    found, names = {}, {module: name for name, module in model.named_modules()}

    def note(part, inputs):
        found.update((names[layer], inputs[layer]) for layer in inputs)
        return convert(part, inputs) if convert else 0

    count = convert_in_passing(model, decoder_layers(model), Passage(rows, num_tokens, CPU), note)
    return count, found


def first_tokens(num_tokens):
    rows, left = [], num_tokens
    while left > 0:
        row = PACKS[len(rows)]
        rows.append({name: torch.from_numpy(row[name][:left])[None] for name in ("input_ids", "position_ids")})
        left -= rows[-1]["input_ids"].shape[1]
    return rows


def test_mean_and_variance_of_what_every_layer_gets(base, model):
    layer, got = base.model.layers[1].mlp.down_proj.base_layer, []
    hook = layer.register_forward_pre_hook(lambda _, x: got.append(x[0][0]))
    with torch.no_grad():
        for row in first_tokens(100):
            base(**row, use_cache=False)
    hook.remove()
    _, found = passed(model)
    linears = [n for n, m in model.named_modules() if n.endswith(".base_layer") and "layers" in n]
    assert sorted(found) == sorted(linears)
    x, inputs = torch.cat(got).double(), found["base_model.model.model.layers.1.mlp.down_proj.base_layer"]
    assert torch.allclose(inputs.mean.double(), x.mean(0), atol=1e-5)
    assert torch.allclose(inputs.variance.double(), x.var(0, correction=0), rtol=1e-3, atol=1e-6)


def test_a_layer_is_converted_before_the_next_is_reached_and_sees_16_bit_inputs(model):
    """Where all were converted at the end, the GPU would have held all of them in 16 bit."""
    reached, layers = [], decoder_layers(model)
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(
            lambda *_, number=number: reached.append((number, sum(_is_converted(other) for other in layers)))
        )
    count, converted = passed(model, convert=lambda part, inputs: convert_to_fp8(part, ("lm_head",), inputs=inputs))
    assert reached == [(number, number) for number in range(len(layers))]
    assert count == 7 * len(layers)
    plain = AutoModelForCausalLM.from_pretrained(model.get_base_model().config.name_or_path, dtype=torch.float32)
    again = get_peft_model(plain.eval(), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    _, unconverted = passed(again)
    assert all(torch.equal(converted[name].mean, inputs.mean) for name, inputs in unconverted.items())


def _is_converted(layer):
    return any(isinstance(module, FrozenLinear) for module in layer.modules())


@pytest.mark.parametrize(("strategy", "returns"), [("single", False), ("ddp", False), ("fsdp2", True), ("zero2", True)])
def test_only_what_is_to_be_sharded_goes_back_to_the_host(tiny_llama, strategy, returns):
    decisions = a_plan(
        tiny_llama, placement=Placement(strategy=strategy, gpu_indices=(0,)), adapters={"calibration_tokens": 100}
    ).decisions
    assert passage_of(decisions, PACKS, CPU) == Passage(PACKS, 100, CPU, returns=returns)


def test_no_hook_is_left_and_no_token_means_no_pass(model):
    assert passed(model)[1]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert passed(model, num_tokens=0) == (0, {})


def test_a_pass_that_breaks_off_leaves_no_hook(model):
    def fail(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        passed(model, convert=fail)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_long_row_is_cut(model):
    ids = np.arange(ROW_TOKENS + 50) % 100 + 3
    row = {"input_ids": ids, "labels": ids, "position_ids": np.arange(len(ids))}
    (_, whole), (_, cut) = (
        passed(model, rows=rows, num_tokens=3000) for rows in ([row], [{k: v[:ROW_TOKENS] for k, v in row.items()}])
    )
    assert all(torch.equal(whole[name].mean, inputs.mean) for name, inputs in cut.items())
