"""The trainer follows its plan: losses fall, and mean the same however the batch is cut."""

import json
import math

import pytest
import torch
from datasets import Dataset
from training_plans import FULL, a_plan, a_trainer, losses, packs, single_rows

from adaptft.errors import TrainingError
from adaptft.training.adapters import causal_lm, count_parameters, trained_parameters

PACKS = packs([[20, 30, 9], [40, 22], [33, 12, 15], [61], [10, 10, 10, 10], [50], [25, 30], [64]])

GENTLE = {"learning_rate": 1e-4}
"""Adam makes full steps of gradients that are nearly zero, so that at a high rate rounding alone drives runs apart."""


def vocabulary(path):
    return json.loads((path / "config.json").read_text())["vocab_size"]


def trained(plan, folder, rows=PACKS, **more):
    trainer = a_trainer(plan, folder, rows, **more)
    trainer.train()
    return trainer


@pytest.mark.parametrize("method", [{}, FULL], ids=["lora", "full"])
@pytest.mark.parametrize("kernel", ["chunked", "full"])
def test_the_loss_falls(tiny_qwen2, tmp_path, method, kernel):
    trainer = trained(a_plan(tiny_qwen2, method=method, loss={"kernel": kernel}), tmp_path)
    first, *_, last = losses(trainer)
    assert first == pytest.approx(math.log(vocabulary(tiny_qwen2)), abs=0.5), "a random model is as good as guessing"
    assert last < first - 0.2


def test_lora_on_an_nf4_base_learns_on_the_cpu(tiny_qwen2, tmp_path):
    pytest.importorskip("bitsandbytes")
    plan = a_plan(tiny_qwen2, method={"train_type": "qlora", "base_storage": "nf4", "double_quant": True})
    trainer = trained(plan, tmp_path)
    assert losses(trainer)[-1] < losses(trainer)[0] - 0.2
    assert {p.dtype for p in trained_parameters(trainer.model)} == {torch.float32}
    assert (
        count_parameters(trainer.model).total
        == count_parameters(plain_model(tiny_qwen2)).total + count_parameters(trainer.model).trained
    )


def test_dora_on_an_nf4_base_begins_where_lora_does(tiny_qwen2, tmp_path):
    """Its norms are those of the weights that bitsandbytes unpacks, not of their bytes."""
    pytest.importorskip("bitsandbytes")
    four_bit = {"train_type": "qlora", "base_storage": "nf4", "double_quant": True}
    dora, lora = (
        losses(trained(a_plan(tiny_qwen2, method={**four_bit, "use_dora": use}), tmp_path / str(use)))
        for use in (True, False)
    )
    assert dora[0] == pytest.approx(lora[0], rel=1e-3)
    assert dora[-1] < dora[0] - 0.2


def plain_model(path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path)


@pytest.mark.parametrize("model", ["tiny_qwen3", "tiny_llama", "tiny_moe"])
def test_other_architectures_learn_too(model, tmp_path, request):
    path = request.getfixturevalue(model)
    of = 4 if model != "tiny_moe" else len(layers_of(path))
    plan = a_plan(path, method={"target_modules": ("q_proj", "v_proj")}, checkpointing={"layers": 1, "of": of})
    found = losses(trained(plan, tmp_path))
    assert found[-1] < found[0]


def layers_of(path):
    from adaptft.training.checkpointing import decoder_layers

    return decoder_layers(plain_model(path))


def test_both_loss_kernels_give_the_same_losses_and_weights(tiny_qwen2, tmp_path):
    a, b = (trained(a_plan(tiny_qwen2, loss={"kernel": kernel}), tmp_path / kernel) for kernel in ("chunked", "full"))
    assert losses(a) == pytest.approx(losses(b), rel=1e-5)


@pytest.mark.parametrize(("micro", "accumulation"), [(1, 8), (2, 4), (4, 2)])
@pytest.mark.parametrize("packing", [True, False])
def test_however_the_global_batch_is_cut_the_losses_are_those_of_one_micro_batch(
    tiny_qwen2, tmp_path, micro, accumulation, packing
):
    rows = PACKS if packing else single_rows([5, 60, 33, 7, 21, 48, 12, 3, 64, 9, 17, 30])
    size = {"global_batch_size": 8, "packing": packing}
    whole = a_plan(
        tiny_qwen2, batch={"micro_batch_size": 8, "gradient_accumulation_steps": 1, **size}, optimizer=GENTLE
    )
    cut = a_plan(
        tiny_qwen2, batch={"micro_batch_size": micro, "gradient_accumulation_steps": accumulation, **size},
        optimizer=GENTLE,
    )  # fmt: skip
    expected = trained(whole, tmp_path / "whole", rows)
    found = trained(cut, tmp_path / "cut", rows)
    assert losses(found) == pytest.approx(losses(expected), rel=1e-4)
    assert [e["grad_norm"] for e in found.state.log_history if "grad_norm" in e] == pytest.approx(
        [e["grad_norm"] for e in expected.state.log_history if "grad_norm" in e], rel=1e-3
    )


def test_the_first_loss_is_the_mean_over_all_trained_tokens_of_the_window(tiny_qwen2, tmp_path):
    rows = single_rows([5, 60, 33, 7])
    batch = {
        "micro_batch_size": 1, "gradient_accumulation_steps": 4, "global_batch_size": 4, "packing": False,
    }  # fmt: skip
    plan = a_plan(tiny_qwen2, batch=batch, schedule={"max_steps": 1})
    assert losses(trained(plan, tmp_path, rows))[0] == pytest.approx(mean_token_loss(tiny_qwen2, rows), rel=1e-5)


@torch.no_grad()
def mean_token_loss(path, rows: Dataset) -> float:
    """The formula, document by document, with transformers alone."""
    model, total, count = plain_model(path), 0.0, 0
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        log_probabilities = model(input_ids=ids).logits[0].log_softmax(-1)
        for position in range(1, ids.shape[1]):
            if row["trained"][position]:
                total -= log_probabilities[position - 1, ids[0, position]].item()
                count += 1
    return total / count


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_pack_has_the_loss_and_the_gradients_of_its_documents(tiny_qwen2, tmp_path, attention):
    lengths = [20, 30, 9]
    shared = {"attention": {"implementation": attention}, "optimizer": {"max_grad_norm": 0.0}}
    one = a_plan(tiny_qwen2, batch={"micro_batch_size": 1, "global_batch_size": 1}, schedule={"max_steps": 1}, **shared)
    separate = a_plan(
        tiny_qwen2, batch={"micro_batch_size": 3, "global_batch_size": 3, "packing": False},
        schedule={"max_steps": 1}, **shared,
    )  # fmt: skip
    packed = window_gradients(a_trainer(one, tmp_path / "a", packs([lengths])))
    apart = window_gradients(a_trainer(separate, tmp_path / "b", single_rows(lengths)))
    assert packed[0] == pytest.approx(apart[0], rel=1e-5)
    for name, gradient in packed[1].items():
        torch.testing.assert_close(gradient, apart[1][name], rtol=1e-4, atol=1e-6, msg=name)


def window_gradients(trainer):
    """Loss and gradients of the first accumulation window."""
    batches = iter(trainer.get_train_dataloader())
    window, count = trainer.get_batch_samples(batches, trainer.args.gradient_accumulation_steps, torch.device("cpu"))
    total = sum(trainer.training_step(trainer.model, batch, count).item() for batch in window)
    return total, {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("layers", [1, 3, 4])
def test_recomputing_layers_change_no_gradient(tiny_qwen2, tmp_path, layers):
    short = {"schedule": {"max_steps": 1}}
    none = window_gradients(a_trainer(a_plan(tiny_qwen2, **short), tmp_path / "a", PACKS))
    some = window_gradients(
        a_trainer(a_plan(tiny_qwen2, checkpointing={"layers": layers}, **short), tmp_path / "b", PACKS)
    )
    assert some[0] == none[0]
    assert len(some[1]) == len(none[1]) > 0
    for name, gradient in none[1].items():
        torch.testing.assert_close(some[1][name], gradient, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("layers", [0, 1, 3, 4])
def test_exactly_the_first_planned_layers_recompute(tiny_qwen2, tmp_path, layers):
    from adaptft.training.checkpointing import decoder_layers

    trainer = a_trainer(a_plan(tiny_qwen2, checkpointing={"layers": layers}), tmp_path, PACKS)
    passes = [0] * 4

    def count(index):
        def hook(*_):
            passes[index] += 1

        return hook

    for index, layer in enumerate(decoder_layers(causal_lm(trainer.model))):
        layer.self_attn.register_forward_pre_hook(count(index))
    window_gradients(trainer)
    assert passes == [2] * layers + [1] * (4 - layers)


def test_another_number_of_layers_than_planned_is_refused(tiny_qwen2, tmp_path):
    with pytest.raises(TrainingError, match="plan counts 28 decoder layers"):
        a_trainer(a_plan(tiny_qwen2, checkpointing={"layers": 2, "of": 28}), tmp_path, PACKS)


@pytest.mark.slow
def test_compiled_layers_train_and_evaluate_alike_with_and_without_recomputation(tiny_qwen2, tmp_path):
    steps = {"optimizer": GENTLE, "schedule": {"max_steps": 2, "eval_steps": 2}}
    plain = trained(a_plan(tiny_qwen2, **steps), tmp_path / "plain", evaluation=PACKS)
    for layers in (0, 2):
        plan = a_plan(tiny_qwen2, compile={"enabled": True}, checkpointing={"layers": layers}, **steps)
        compiled = trained(plan, tmp_path / str(layers), evaluation=PACKS)
        assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
        assert evaluations(compiled) == pytest.approx(evaluations(plain), rel=1e-4)


def evaluations(trainer):
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_evaluation_counts_every_token_the_same(tiny_qwen2, tmp_path):
    held_out = single_rows([5, 60, 33], seed=7)
    plan = a_plan(tiny_qwen2, batch={"packing": False}, schedule={"max_steps": 2, "eval_steps": 1})
    trainer = trained(plan, tmp_path, single_rows([20] * 4), evaluation=held_out)
    found = evaluations(trainer)
    assert len(found) == 3, "before the first step and after each"
    assert found[0] == pytest.approx(mean_token_loss(tiny_qwen2, held_out), rel=1e-5)
    assert found[-1] < found[0]


def test_norms_and_biases_do_not_decay_and_adapters_do(tiny_qwen2, tmp_path):
    trainer = a_trainer(a_plan(tiny_qwen2, method=FULL), tmp_path, PACKS)
    decayed, free = trainer.create_optimizer().param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.01, 0.0)
    assert all(p.ndim == 2 for p in decayed["params"])
    assert all(p.ndim == 1 for p in free["params"])


def test_the_learning_rate_warms_up_and_follows_a_cosine(tiny_qwen2, tmp_path):
    trainer = trained(a_plan(tiny_qwen2, optimizer={"warmup_steps": 2, "learning_rate": 1e-3}), tmp_path)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "seconds" in entry]
    cosine = [0.5 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, *(1e-3 * share for share in cosine)])


def test_gradients_are_clipped(tiny_qwen2, tmp_path):
    loose, tight = (
        trained(a_plan(tiny_qwen2, optimizer={"max_grad_norm": norm}), tmp_path / str(norm)) for norm in (1e9, 1e-7)
    )
    assert losses(loose) != losses(tight)
    assert all(entry["grad_norm"] > 1e-7 for entry in tight.state.log_history if "grad_norm" in entry)


def test_rows_without_a_trained_token_stop_the_first_step(tiny_qwen2, tmp_path):
    with pytest.raises(TrainingError, match="exactly 0"):
        trained(a_plan(tiny_qwen2, batch={"packing": False}), tmp_path, single_rows([9] * 4, prompt=9))


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_step(tiny_qwen2, tmp_path):
    trainer = a_trainer(a_plan(tiny_qwen2, optimizer={"learning_rate": 1e30}), tmp_path, PACKS)
    with pytest.raises(TrainingError, match=r"(loss|gradient) of step \d is (nan|inf)"):
        trainer.train()


def test_targets_that_no_layer_matches_are_named_with_what_there_is(tiny_qwen2, tmp_path):
    with pytest.raises(TrainingError, match="query_key_value") as caught:
        a_trainer(a_plan(tiny_qwen2, method={"target_modules": ("query_key_value",)}), tmp_path, PACKS)
    assert "q_proj" in caught.value.fix


def test_a_regex_chooses_the_adapted_layers(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, method={"target_modules": (), "target_regex": r".*layers\.[01]\.self_attn\.q_proj"})
    names = {n for n, p in a_trainer(plan, tmp_path, PACKS).model.named_parameters() if p.requires_grad}
    assert len(names) == 4
    assert all("q_proj" in name for name in names)


def test_layers_that_the_planned_kernels_cannot_stand_for_are_told(tmp_path, capsys):
    import models_factory

    odd = models_factory.build("tiny-qwen2", tmp_path / "odd", hidden_act="relu", num_hidden_layers=2)
    plan = a_plan(odd, adapters={"fused": True}, checkpointing={"layers": 0, "of": 2})
    trainer = a_trainer(plan, tmp_path / "out", PACKS)
    (incident,) = trainer.journal.state.incidents
    assert (incident.kind, incident.step) == ("not_fused", 0)
    assert "2 blocks of this model cannot use (model.layers.0.mlp is the first)" in incident.said
    assert incident.said in capsys.readouterr().err
    again = a_trainer(plan, tmp_path / "out", PACKS, journal=trainer.journal)
    assert again.journal.state.incidents == (incident,), "a run that goes on does not say it again"
