"""Memory that runs out in a step: the same steps in smaller parts, remembered, told; and the worst is tried first."""

import numpy as np
import pytest
import torch
from faults import small_device, small_disk
from training_plans import FULL, a_plan, a_trainer, losses, packs, single_rows

from adaptft.errors import TrainingError
from adaptft.training import numerics, parts, preflight
from adaptft.training.batches import Collator, Rows
from adaptft.training.checkpoints import newest_whole
from adaptft.training.incidents import Journal, read_state

PACKS = packs([[20, 30, 9], [40, 22], [33, 12, 15], [16, 40], [10, 10, 10, 10], [24, 24], [25, 30], [31, 32]])
GENTLE = {"learning_rate": 1e-4}
WINDOWS = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "global_batch_size": 4}


def run(plan, folder, rows=PACKS, **more):
    trainer = a_trainer(plan, folder, rows, **more)
    trainer.train(resume_from_checkpoint=more.pop("resume", None))
    return trainer


def norms(trainer):
    return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]


@pytest.fixture(scope="module")
def whole(tiny_qwen2, tmp_path_factory):
    """A run with enough memory."""
    return run(a_plan(tiny_qwen2, batch=WINDOWS, optimizer=GENTLE), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize(("most_tokens", "after"), [(64, 0), (40, 0), (64, 37), (40, 40)])
def test_the_loss_curve_is_that_of_a_run_with_enough_memory(tiny_qwen2, whole, tmp_path, where, most_tokens, after):
    plan = a_plan(tiny_qwen2, batch=WINDOWS, optimizer=GENTLE)
    with small_device(most_tokens, where=where, after=after) as failed:
        cut = run(plan, tmp_path / "cut")
    assert failed
    assert len(failed) <= 4, "the size is remembered: it does not run out in every step"
    assert cut.journal.state.part_tokens <= most_tokens
    assert losses(cut) == pytest.approx(losses(whole), rel=1e-6)
    assert norms(cut) == pytest.approx(norms(whole), rel=1e-5)
    assert cut.state.global_step == whole.state.global_step


def test_a_full_fine_tune_with_single_rows_is_cut_too(tiny_qwen2, tmp_path):
    rows = single_rows([5, 60, 33, 7, 21, 48, 12, 3])
    batch = {"micro_batch_size": 4, "global_batch_size": 4, "packing": False}
    plan = a_plan(tiny_qwen2, method=FULL, batch=batch, optimizer=GENTLE)
    whole = run(plan, tmp_path / "whole", rows)
    with small_device(130, where="backward") as failed:
        cut = run(plan, tmp_path / "cut", rows)
    assert failed == [256]
    assert losses(cut) == pytest.approx(losses(whole), rel=1e-6)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 9")],
    ids=["python", "torch"],
)
def test_memory_of_the_host_that_runs_out_is_handled_alike(tiny_qwen2, whole, tmp_path, error):
    with small_device(64, error=error) as failed:
        cut = run(a_plan(tiny_qwen2, batch=WINDOWS, optimizer=GENTLE), tmp_path / "cut")
    assert failed
    assert losses(cut) == pytest.approx(losses(whole), rel=1e-6)


def test_what_was_planned_and_what_was_done_are_in_the_journal(tiny_qwen2, tmp_path):
    with small_device(64):
        trainer = run(a_plan(tiny_qwen2, batch=WINDOWS), tmp_path)
    (incident,) = trainer.journal.state.incidents
    assert incident.kind == "out_of_memory"
    assert "32 MiB were predicted" in incident.said
    assert "128 tokens at a time were too many: training goes on with at most 64" in incident.said


def test_a_resumed_run_remembers_the_size(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, batch=WINDOWS, schedule={"max_steps": 6, "save_steps": 3}, optimizer=GENTLE)
    with small_device(64):
        run(plan, tmp_path)
    checkpoint = newest_whole(tmp_path, up_to=3)[0]
    journal = Journal(read_state(checkpoint))
    with small_device(64) as failed:
        trainer = a_trainer(plan, tmp_path / "on", PACKS, journal=journal)
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert failed == []
    assert trainer.journal.state.part_tokens == 64


def test_evaluation_is_cut_too(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, schedule={"max_steps": 2, "eval_steps": 1})
    whole = run(plan, tmp_path / "whole", evaluation=PACKS)
    with small_device(40, trains=False) as failed:
        cut = run(plan, tmp_path / "cut", evaluation=PACKS)
    assert failed
    assert cut.journal.state.part_tokens is None, "training fits as it is"
    assert cut.journal.state.eval_part_tokens <= 40
    assert evaluations(cut) == pytest.approx(evaluations(whole), rel=1e-6)


def evaluations(trainer):
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_a_document_that_does_not_fit_alone_stops_the_run_in_its_first_minute(tiny_qwen2, tmp_path):
    with small_device(16), pytest.raises(TrainingError, match="were predicted") as caught:
        run(a_plan(tiny_qwen2), tmp_path)
    assert "--max_length 32" in caught.value.fix or "--per_device_train_batch_size" in caught.value.fix
    assert not list(tmp_path.glob("*checkpoint*"))


def test_a_window_that_is_begun_again_draws_the_same_dropout(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, method={"lora_dropout": 0.3}, batch=WINDOWS)
    trainer = a_trainer(plan, tmp_path, PACKS)
    batches = iter(trainer.get_train_dataloader())
    taken, count = trainer.get_batch_samples(batches, 2, torch.device("cpu"))
    first = trainer.training_step(trainer.model, taken[0], count).item()
    trainer.model.zero_grad()
    numerics.set_random_state(trainer.steps._randomness)
    assert trainer.training_step(trainer.model, taken[0], count).item() == first


# ---- cutting


@pytest.mark.parametrize("form", ["packed", "flat", "padded"])
@pytest.mark.parametrize("most", [1, 30, 64, 100, 1000])
def test_parts_hold_every_token_once_and_cut_no_document(form, most):
    rows = Rows(PACKS if form == "packed" else single_rows([5, 60, 33, 7]))
    batch = Collator(form=form, length=64, with_boundaries=form == "flat")([rows[i] for i in range(4)])
    found = parts.within(batch, most)
    for name in parts.TENSORS:
        whole = np.concatenate([row.numpy() for row in batch[name]])
        assert np.array_equal(np.concatenate([row.numpy() for part in found for row in part[name]]), whole)
    for part in found:
        assert parts.num_tokens(part) <= most or parts.halves(part) is None
        assert all(row[0] == 0 for row in part["position_ids"])
        assert ("cu_seq_lens_q" in part) == (form == "flat" and (part["position_ids"][:, 1:] == 0).any())
        if "cu_seq_lens_q" in part:
            assert part["cu_seq_lens_q"].tolist()[0] == 0
            assert part["cu_seq_lens_q"].tolist()[-1] == parts.num_tokens(part)


# ---- the rehearsal


def snapshot(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("method", [{"lora_dropout": 0.1}, FULL], ids=["lora", "full"])
def test_the_rehearsal_leaves_everything_as_it_was(tiny_qwen2, tmp_path, method):
    plan = a_plan(tiny_qwen2, method=method, schedule={"max_steps": 9, "eval_steps": 3, "save_steps": 3})
    trainer = a_trainer(plan, tmp_path, PACKS, evaluation=PACKS)
    trainer.create_optimizer()
    trainer.create_scheduler(9)
    trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.state.max_steps = 9
    weights, random = snapshot(trainer), numerics.random_state()
    rates = [group["lr"] for group in trainer.optimizer.param_groups]

    with small_device(128, where="backward") as failed:
        preflight.rehearse(trainer, trainer.model)

    assert not failed
    for name, before in weights.items():
        assert torch.equal(dict(trainer.model.named_parameters())[name], before), name
    assert all(p.grad is None for p in trainer.model.parameters())
    assert not trainer.optimizer.optimizer.state
    assert [group["lr"] for group in trainer.optimizer.param_groups] == rates
    assert torch.equal(numerics.random_state().torch, random.torch)
    assert numerics.random_state().python == random.python
    assert trainer.state.log_history == []
    assert list(tmp_path.iterdir()) == []
    assert trainer.model.training


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_rehearsal_holds_gradients_beside_activations_only_where_the_run_does(tiny_qwen2, tmp_path, accumulation):
    batch = {"gradient_accumulation_steps": accumulation, "global_batch_size": 2 * accumulation, "micro_batch_size": 2}
    plan = a_plan(tiny_qwen2, method=FULL, batch=batch, schedule={"max_steps": 9})
    trainer = a_trainer(plan, tmp_path, PACKS)
    trainer.create_optimizer()
    trainer.create_scheduler(9)
    trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    trainer.state.max_steps = 9
    held = []
    trainer.model.register_forward_pre_hook(
        lambda *_: held.append((all(p.grad is not None for p in trainer.trained), len(trainer.optimizer.state)))
    )
    preflight.rehearse(trainer, trainer.model)
    assert held[0] == (accumulation > 1, len(trainer.trained))


def test_the_rehearsal_takes_the_longest_rows(tiny_qwen2, tmp_path):
    rows = Rows(single_rows([5, 60, 33, 7, 48]))
    assert rows.longest(2) == [1, 4]
    assert rows.longest(9) == [1, 4, 2, 3, 0]


def test_memory_that_will_not_do_is_found_before_the_first_step(tiny_qwen2, tmp_path):
    plan = a_plan(tiny_qwen2, batch={"packing": False, "micro_batch_size": 1, "global_batch_size": 1})
    rows = single_rows([9, 9, 9, 9, 9, 60])
    trainer = a_trainer(plan, tmp_path, rows)
    with small_device(63), pytest.raises(TrainingError):
        trainer.train()
    assert trainer.state.global_step == 0


def test_space_is_set_aside_and_given_back(tmp_path):
    preflight.reserve(tmp_path, 1 << 20)
    assert list(tmp_path.iterdir()) == []
    with small_disk(tmp_path / "small", "1m") as small, pytest.raises(OSError, match="No space left"):
        preflight.reserve(small, 2 << 20)
    assert list((tmp_path / "small").iterdir()) == []
