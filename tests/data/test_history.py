"""Alpaca rows with earlier exchanges, in all the forms people write."""

from __future__ import annotations

import pytest

from adaptft.errors import DataError


def alpaca(history: object) -> dict:
    return {"instruction": "And 3?", "input": "", "output": "4", "history": history}


@pytest.mark.parametrize("history", [None, [], "", "[]", "null"])
def test_no_history(read, history):
    assert read([alpaca(history)]).trained() == ["4<|im_end|>"]


@pytest.mark.parametrize(
    "history",
    [
        [["hi", "ok"]],
        ["hi", "ok"],
        '[["hi", "ok"]]',
        '["hi", "ok"]',
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}],
        [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ok"}],
        [{"human": "hi", "assistant": "ok"}],
        [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]],
        [{"query": "hi", "response": "ok"}],
    ],
)
def test_one_earlier_exchange_in_every_form(read, history):
    rows = read([alpaca(history)])
    assert rows.trained() == ["ok<|im_end|>", "4<|im_end|>"]
    assert rows.texts()[0].count("<|im_start|>user") == 2


def test_two_exchanges_keep_their_order_and_the_report_says_once_that_earlier_answers_are_trained(read):
    rows = read([alpaca([["1?", "2"], ["2?", "3"]])])
    assert rows.trained() == ["2<|im_end|>", "3<|im_end|>", "4<|im_end|>"]
    assert rows.report.in_the_loss.startswith("the answers, earlier ones of a conversation too (1 row with")
    masked = read([alpaca([["1?", "2"], ["2?", "3"]])], mask_history=True)
    assert masked.trained() == ["4<|im_end|>"]
    assert masked.report.in_the_loss.startswith("only the last answer")


@pytest.mark.parametrize("answer", ["", None, "  "])
def test_nothing_is_trained_for_an_empty_earlier_answer(read, answer):
    rows = read([alpaca([["hi", answer]])])
    assert rows.trained() == ["4<|im_end|>"]
    assert "None" not in rows.texts()[0]


def test_numbers_in_history_are_their_text(read):
    assert read([alpaca([[2, 3.5]])]).trained()[0] == "3.5<|im_end|>"


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([["one", "two", "three"]], "history entry of 3 items instead of 2"),
        ([["one"]], "history entry of 1 items instead of 2"),
        (["a", "b", "c", "d"], "history entry that is not a pair"),
        (["ab", ["c", "d"]], "history entry that is not a pair"),
        ("hi", "history is text, not a list"),
        (7, "history is a number, not a list"),
        ([["", "ok"]], "exchange without a question"),
        ([[None, "ok"]], "exchange without a question"),
        ([{"a": 1}], "message without a role"),
        ([7, 8], "history entry that is not a pair"),
    ],
)
def test_history_that_cannot_be_meant_rejects_the_row_with_the_reason(read, history, reason):
    with pytest.raises(DataError, match=f"{reason}: 1 .rows.jsonl, line 1."):
        read([alpaca(history)])
