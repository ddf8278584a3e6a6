"""Whole models trained in FP8; off the GPU the same quantised values are multiplied in float32."""

from __future__ import annotations

import models_factory
import pytest
import torch
from training_plans import a_plan, a_trainer, losses, packs

from adaptft import plans
from adaptft.errors import TrainingError
from adaptft.training.assembly import build_model
from adaptft.training.batches import Rows

PACKS = packs([[20 + i % 7, 30 - i % 11] for i in range(10)])
WHOLE = plans.Method(train_type="full", base_storage="bf16", skipped_modules=("lm_head",))


def _plan(model, compute="fp8", **changed):
    precision = plans.Precision(weights="bf16", compute=compute, fp32_matmul="ieee")
    schedule = {"max_steps": 4, "save_steps": 2}
    return a_plan(model, **({"method": WHOLE, "precision": precision, "schedule": schedule} | changed))


def _run(plan, folder, resume=None):
    trainer = a_trainer(plan, folder, PACKS)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_every_linear_layer_but_the_head_is_in_fp8(tiny_llama):
    model = build_model(_plan(tiny_llama), tiny_llama, Rows(PACKS))
    block = model.model.layers[0]
    changed = [
        block.self_attn.q_proj,
        block.self_attn.k_proj,
        block.self_attn.v_proj,
        block.self_attn.o_proj,
        block.mlp,
    ]
    assert all(module.forward.__module__.startswith("adaptft.kernels.") for module in changed)
    assert not model.lm_head.forward.__module__.startswith("adaptft.kernels.")


def test_a_layer_that_cannot_be_converted_stops_the_run(tmp_path):
    odd = models_factory.build("tiny-llama", tmp_path / "odd", intermediate_size=520)
    with pytest.raises(TrainingError, match=r"only 16 of 28 linear layers can") as refused:
        build_model(_plan(odd), odd, Rows(PACKS))
    assert "--fp8 false" in refused.value.fix


def test_the_loss_stays_near_that_of_bf16_and_falls(tiny_qwen2, tmp_path):
    in_fp8, in_bf16 = (losses(_run(_plan(tiny_qwen2, c), tmp_path / c)) for c in ("fp8", "bf16"))
    assert in_fp8 != in_bf16
    assert in_fp8 == pytest.approx(in_bf16, rel=0.01)
    assert in_fp8[-1] < in_fp8[0]


def test_an_fp8_run_resumes_bit_for_bit_and_is_saved_as_ordinary_weights(tiny_qwen2, tmp_path):
    from transformers import AutoModelForCausalLM

    uninterrupted = _run(_plan(tiny_qwen2), tmp_path / "a")
    resumed = _run(_plan(tiny_qwen2), tmp_path / "b", str(tmp_path / "a" / "checkpoint-2"))
    assert losses(resumed) == losses(uninterrupted)
    uninterrupted.model.save_pretrained(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16)
    trained = uninterrupted.model.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.state_dict().items())
