"""The cache, processes, splitting, fitting, packing and batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptft import data
from adaptft.data.packing import best_fit_decreasing
from adaptft.errors import DataError


def rows(count: int, answer: str = "yes ") -> list[dict]:
    return [{"instruction": f"Say {i}.", "output": answer * (i % 7 + 1)} for i in range(count)]


def test_second_start_reads_the_cache_and_gives_the_same(read):
    first, second = read(rows(5)), read(rows(5))
    assert (first.report.from_cache, second.report.from_cache) == (False, True)
    assert first.rows == second.rows
    assert first.sample == second.sample


def test_anything_that_goes_into_the_rows_invalidates_the_cache(read, tmp_path, tokenizer_with):
    import os

    def is_cached(answer: str = "yes ", template: str = "qwen2.5", **settings: object) -> bool:
        read_again = read(rows(3, answer), template, **settings)
        os.utime(tmp_path / "rows.jsonl", (1, 1))  # a date must not matter
        return read_again.report.from_cache

    assert [is_cached(), is_cached()] == [False, True]
    assert not is_cached("yea "), "the same size, another content"
    assert not is_cached(template="qwen3")
    assert not is_cached(system="Be brief.")
    assert not is_cached(train_on_prompt=True)
    assert not is_cached(mask_history=True)
    assert is_cached(max_bad_rows=0.5), "a limit does not change the rows"
    other = tokenizer_with("qwen2.5")
    other.add_tokens(["yes yes"])
    assert not read(rows(3), other).report.from_cache


@pytest.mark.parametrize("name", ["rows.arrow", "entry.json"])
def test_damaged_cache_is_made_again(read, own_cache, name):
    read(rows(3))
    (path,) = own_cache.rglob(name)
    path.write_bytes(path.read_bytes()[:50])
    again = read(rows(3))
    assert not again.report.from_cache
    assert len(again.rows) == 3


def test_nothing_is_left_behind_when_reading_fails(read, tmp_path, own_cache):
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text" "b"}]' + " " * 10)
    with pytest.raises(DataError):
        read(tmp_path / "a.json")
    assert not list(own_cache.rglob("*.arrow"))


def test_processes_give_the_rows_of_one_process_in_order(read):
    many = rows(1500)
    many[1300] = {"instruction": "?", "output": None}
    one = read(many, num_proc=1)
    two = read(many[:1300] + many[1300:], num_proc=2)
    assert two.report.from_cache, "the number of processes does not change the rows"
    fresh = read([*rows(1500), {"instruction": "?", "output": None}], num_proc=2)
    assert fresh.rejected() == {"empty answer": (1501,)}
    assert one.rejected() == {"empty answer": (1301,)}
    assert fresh.rows[:1300] == one.rows[:1300]


def test_split_is_disjoint_complete_and_repeatable(read):
    tokenized = read(rows(50)).tokenized
    train, held_out = data.split(tokenized, 0.1, seed=1)
    again, _ = data.split(tokenized, 0.1, seed=1)
    assert (len(train.rows), len(held_out.rows)) == (45, 5)
    assert train.rows["input_ids"][:] == again.rows["input_ids"][:]
    both = sorted(map(tuple, [*train.rows["input_ids"], *held_out.rows["input_ids"]]))
    assert both == sorted(map(tuple, tokenized.rows["input_ids"]))
    assert train.shape.num_tokens + held_out.shape.num_tokens == tokenized.shape.num_tokens
    assert held_out.shape.num_trained_tokens == sum(map(sum, held_out.rows["trained"]))
    assert data.split(tokenized, 0.0, seed=1) == (tokenized, None)


def test_split_that_leaves_nothing_is_refused(read):
    with pytest.raises(DataError, match="leaves none to train on") as error:
        data.split(read(rows(1)).tokenized, 0.5, seed=1)
    assert "--val_dataset" in error.value.fix


@pytest.fixture
def long_rows(read):
    return read([{"text": "a"}, {"text": "b" * 25}, {"text": "c" * 9}]).tokenized.rows


@pytest.mark.parametrize(
    ("strategy", "lengths", "note"),
    [
        ("delete", [2, 10], "left out (truncation_strategy delete)."),
        ("right", [2, 10, 10], "cut (truncation_strategy right)."),
        ("left", [2, 10, 10], "cut (truncation_strategy left)."),
        ("split", [2, 10, 10, 6, 10], "cut (truncation_strategy split)."),
    ],
)
def test_rows_over_max_length_are_counted_and_treated_as_asked(long_rows, strategy, lengths, note):
    fitted, notes = data.fit_rows(long_rows, 10, strategy)
    assert list(map(len, fitted["input_ids"])) == lengths
    assert notes == (f"1 of 3 rows are longer than max_length 10 (longest 26): {note}",)
    whole = long_rows[1]["input_ids"]
    kept = {"right": whole[:10], "left": whole[-10:], "split": whole[:10], "delete": long_rows[2]["input_ids"]}[
        strategy
    ]
    assert fitted[1]["input_ids"] == kept


def test_pieces_without_a_token_in_the_loss_are_left_out_and_counted(read):
    tokenized = read([{"instruction": "What? " * 40, "output": "Yes."}]).tokenized
    with pytest.raises(DataError, match="No row is left"):
        data.fit_rows(tokenized.rows, 20, "right")
    fitted, notes = data.fit_rows(tokenized.rows, 20, "split")
    assert all(any(row["trained"][1:]) for row in fitted)
    assert "rows or pieces have no token in the loss after the cut: left out." in notes[1]


def test_all_rows_too_long_is_refused_with_the_length_that_would_do(long_rows):
    with pytest.raises(DataError, match="all 3 are longer than max_length 1") as error:
        data.fit_rows(long_rows, 1)
    assert "--max_length 26" in error.value.fix


@given(st.lists(st.integers(1, 50), max_size=60))
def test_bins_hold_every_row_once_and_never_overflow(lengths):
    bins = best_fit_decreasing(lengths, 50)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in members) <= 50 for members in bins)
    assert len(bins) <= -(-sum(lengths) // 50) * 2, "never half empty on average"


def test_packs_hold_every_document_once_with_its_own_positions_and_labels(read):
    tokenized = read(rows(40)).tokenized
    packs = data.pack(tokenized.rows, 128, seed=3)
    documents = []
    for pack in packs:
        assert len(pack["input_ids"]) <= 128
        starts = [i for i, position in enumerate(pack["position_ids"]) if position == 0]
        for start, end in zip(starts, [*starts[1:], len(pack["input_ids"])], strict=True):
            assert pack["position_ids"][start:end] == list(range(end - start))
            assert pack["labels"][start] == -100, "the first token of a document is never a target"
            documents.append((tuple(pack["input_ids"][start:end]), tuple(pack["labels"][start:end])))
    expected = [
        (
            tuple(row["input_ids"]),
            tuple(i if t else -100 for i, t in zip(row["input_ids"], row["trained"], strict=True)),
        )
        for row in tokenized.rows
    ]
    assert sorted(documents) == sorted(expected)
    assert data.pack(tokenized.rows, 128, seed=3)[:] == packs[:]
    assert data.pack(tokenized.rows, 128, seed=4)[:] != packs[:]


def test_first_token_of_plain_text_is_never_a_target(read):
    packs = data.pack(read([{"text": "abc"}, {"text": "defg"}]).tokenized.rows, 32, seed=0)
    assert [label == -100 for label in packs[0]["labels"]] == [position == 0 for position in packs[0]["position_ids"]]


def test_packs_of_rows_that_were_cut_or_held_out_are_their_own(read):
    tokenized = read(rows(40)).tokenized
    train, held_out = data.split(tokenized, 0.25, seed=0)
    total = sum(sum(map(len, data.pack(part.rows, 128, seed=0)["input_ids"])) for part in (train, held_out))
    assert total == tokenized.shape.num_tokens


def test_arrow_offsets_measure_rows_through_selections(read):
    from adaptft.data.tables import row_lengths, trained_counts

    chosen = read(rows(30)).tokenized.rows.select([7, 3, 29])
    assert row_lengths(chosen).tolist() == [len(row["input_ids"]) for row in chosen]
    assert trained_counts(chosen).tolist() == [sum(row["trained"]) for row in chosen]
    assert np.issubdtype(row_lengths(chosen).dtype, np.int64)


def test_a_new_user_can_write_the_cache_where_they_say(read, tmp_path, monkeypatch):
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("in the way")
    from adaptft.errors import OutputError

    with pytest.raises(OutputError, match="Cannot write tokenised rows") as error:
        read(rows(2))
    assert "ADAPTFT_HOME" in error.value.fix


def test_reading_does_not_import_torch_before_batches_are_made(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, adaptft.data; print(sorted({'torch', 'transformers', 'datasets', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", Path(__file__).name + json.dumps(done.stderr[-200:])
