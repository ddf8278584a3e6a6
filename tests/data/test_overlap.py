"""Held-out rows that are training rows too are counted and said, before the run and in its report."""

from __future__ import annotations

import json

import pytest

from adaptft.data.overlap import overlap, overlap_warning


def rows(*numbers: int) -> list[dict[str, str]]:
    return [{"question": f"What is {n}?", "answer": f"It is {n}."} for n in numbers]


@pytest.mark.parametrize(
    ("training", "held_out", "count", "said"),
    [
        (rows(1, 2, 3), rows(4, 5), 0, None),
        (rows(1, 2, 3), rows(3, 4), 1, "1 of the 2 rows of v.jsonl are rows of the training data too"),
        (rows(1, 2, 3), rows(1, 2, 3), 3, "all rows of v.jsonl"),
        (rows(1, 1, 2), rows(1), 1, "all rows of v.jsonl"),
    ],
)
def test_rows_in_both_are_counted(training, held_out, count, said, read):
    first, second = read(training).tokenized.rows, read(held_out).tokenized.rows
    assert overlap(first, second) == count
    warned = " ".join(overlap_warning(first, second, ("v.jsonl",)))
    assert said in warned if said else not warned


def test_a_part_of_the_rows_is_compared_as_it_stands(read):
    whole = read(rows(*range(40))).tokenized.rows
    assert overlap(whole.select(range(20)), whole.select(range(15, 40))) == 5


@pytest.mark.parametrize("command", ["plan", "train"])
def test_the_same_file_for_both_is_said_first(command, tiny_qwen2, tmp_path, monkeypatch, capfd):
    from adaptft.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(*range(8))))
    words = f"{command} --model {tiny_qwen2} --dataset a.jsonl --val_dataset a.jsonl --device cpu --max_length 128"
    more = ["--max_steps", "1", "--output_dir", "out", "--report_to", "none"]
    with pytest.raises(SystemExit) as end:
        main([*words.split(), *more])
    assert not end.value.code
    page = " ".join(capfd.readouterr().out.split())
    assert page.startswith("! all rows of a.jsonl are rows of the training data too")
    if command == "train":
        assert "all rows of a.jsonl" in (tmp_path / "out/report.json").read_text()


def test_the_built_in_rows_are_said_first(tiny_qwen2, tmp_path, monkeypatch, capfd):
    from adaptft.cli import main

    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit):
        main(["plan", "--model", str(tiny_qwen2), "--device", "cpu"])
    page = " ".join(capfd.readouterr().out.split())
    assert page.startswith("! No --dataset: training on the built-in GSM8K rows")
