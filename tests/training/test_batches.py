"""Rows reach every rank once an epoch, in the same steps however they are cut, and in the form the kernels take."""

import numpy as np
import pytest
import torch
from training_plans import documents, packs, single_rows

from adaptft.training.batches import Collator, MicroBatches, Rows, boundaries, loader


def steps(num_rows, micro, accumulation, ranks, epoch=0):
    """Rows of each optimizer step, over all ranks; fillers left out."""
    shares = []
    for rank in range(ranks):
        order = MicroBatches(num_rows, micro, seed=3, rank=rank, num_ranks=ranks)
        order.set_epoch(epoch)
        batches = list(order)
        assert len(batches) == len(order)
        shares.append([batches[i : i + accumulation] for i in range(0, len(batches), accumulation)])
    return [
        {index for window in windows for batch in window for index in batch if index >= 0}
        for windows in zip(*shares, strict=True)
    ]


@pytest.mark.parametrize("num_rows", [48, 50, 7])
@pytest.mark.parametrize(
    ("micro", "accumulation", "ranks"), [(8, 1, 1), (1, 8, 1), (4, 2, 1), (2, 2, 2), (1, 1, 8), (2, 4, 1)]
)
def test_a_step_takes_the_same_rows_however_the_global_batch_is_cut(num_rows, micro, accumulation, ranks):
    found = steps(num_rows, micro, accumulation, ranks)
    assert found == steps(num_rows, 8, 1, 1)
    assert sorted(index for step in found for index in step) == list(range(num_rows)), "every row once an epoch"


def test_every_epoch_has_its_own_order_and_the_same_one_each_time():
    assert steps(48, 8, 1, 1, epoch=0) != steps(48, 8, 1, 1, epoch=1)
    assert steps(48, 8, 1, 1, epoch=1) == steps(48, 8, 1, 1, epoch=1)


def test_reading_rows_draws_nothing_from_the_random_numbers_of_dropout():
    before = torch.get_rng_state()
    order = MicroBatches(5, 2, seed=3)
    collator = Collator(form="padded", length=0, with_boundaries=False)
    assert len(list(loader(Rows(single_rows([5] * 5)), order, collator, pinned=False))) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_held_out_rows_come_in_their_own_order():
    assert list(MicroBatches(5, 2, seed=None)) == [[0, 1], [2, 3], [4]]


def test_a_rank_that_ran_out_of_rows_computes_one_that_trains_nothing():
    last = list(MicroBatches(5, 1, seed=None, rank=1, num_ranks=2))[-1]
    rows = Rows(single_rows([5] * 5))
    assert last == [-1]
    assert (rows[-1]["labels"] == -100).all()
    assert (rows[-1]["input_ids"] == rows[0]["input_ids"]).all()


def test_labels_are_shifted_and_never_cross_documents():
    batch = Collator(form="packed", length=10, with_boundaries=False)([Rows(packs([[4, 3]], prompt=0))[0]])
    first, second = documents([4, 3])
    assert batch["labels"][0].tolist() == [*first[1:], -100, *second[1:], -100, -100, -100, -100]
    assert batch["position_ids"][0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]
    assert (batch["num_tokens"], batch["num_trained"]) == (7, 5)


def test_padded_rows_keep_counting_positions_so_that_no_mask_is_made():
    batch = Collator(form="padded", length=0, with_boundaries=False)([Rows(single_rows([3, 70]))[i] for i in (0, 1)])
    assert batch["input_ids"].shape == (2, 128)
    assert (np.diff(batch["position_ids"].numpy(), axis=1) == 1).all()


def test_flat_rows_follow_each_other_without_padding_between():
    batch = Collator(form="flat", length=0, with_boundaries=True)([Rows(single_rows([3, 70, 9]))[i] for i in range(3)])
    assert batch["input_ids"].shape == (1, 128)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 73, 82, 128]
    assert batch["labels"][0, 2].item() == batch["labels"][0, 72].item() == -100


@pytest.mark.parametrize(("longest", "bound"), [(100, 128), (1500, 2048), (2049, 4096), (4096, 4096)])
def test_the_bound_on_documents_is_a_power_of_two_that_seldom_changes(longest, bound):
    positions = np.append(np.arange(longest), 0)[None].astype(np.int64)
    assert boundaries(positions)["max_length_q"] >= longest
    assert boundaries(positions)["max_length_q"] == bound


def test_rows_of_one_document_each_need_no_boundaries():
    one_each = np.stack([np.arange(64), np.arange(64)])
    assert boundaries(one_each) == {}
    assert boundaries(np.append(one_each, [[0] * 64, range(64)], axis=0))["cu_seq_lens_q"][-1] == 4 * 64
