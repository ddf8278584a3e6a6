"""Preference pairs, thumbs and labels: refused with the option that would train on their good answers; it works."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from adaptft.errors import DataError

QUESTION = {"role": "user", "content": "?"}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


PAIRS: dict[str, dict[str, Any]] = {
    "texts with a prompt": {"prompt": "?", "chosen": "good", "rejected": "bad"},
    "texts with an instruction": {"instruction": "?", "chosen": "good", "rejected": "bad"},
    "answers as messages, with a common prompt": {
        "prompt": [QUESTION], "chosen": [answer("good")], "rejected": [answer("bad")],
    },
    "whole conversations": {"chosen": [QUESTION, answer("good")], "rejected": [QUESTION, answer("bad")]},
    "whole conversations beside the prompt": {
        "prompt": "?", "chosen": [QUESTION, answer("good")], "rejected": [QUESTION, answer("bad")],
    },
    "LLaMA-Factory's": {
        "conversations": [{"from": "human", "value": "?"}],
        "chosen": {"from": "gpt", "value": "good"}, "rejected": {"from": "gpt", "value": "bad"},
    },
    "ms-swift's": {"messages": [QUESTION, answer("good")], "rejected_response": "bad"},
    "ms-swift's older": {"query": "?", "response": "good", "rejected_response": "bad"},
}  # fmt: skip


def offered(fix: str) -> str:
    found = re.search(r"--columns '(\{.*?\})'", fix)
    assert found, fix
    return found[1]


@pytest.mark.parametrize("row", PAIRS.values(), ids=PAIRS)
def test_pairs_are_refused_and_train_on_the_good_answer_when_asked_as_the_error_says(read, row):
    with pytest.raises(DataError, match="holds preference pairs") as error:
        read([row])
    assert "good answers" in error.value.fix
    rows = read([row], columns=offered(error.value.fix))
    assert rows.trained() == ["good<|im_end|>"]
    assert rows.texts() == [
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\ngood<|im_end|>\n"
    ]


def test_a_conversation_where_an_answer_should_be_is_not_asked_twice(read):
    row = PAIRS["whole conversations beside the prompt"]
    rows = [row, {"prompt": "?", "chosen": [answer("good")]}]
    read_rows = read(rows, columns='{"prompt": "query", "chosen": "response"}')
    assert list(read_rows.rejected()) == [
        "answer that repeats the question: a whole conversation, to be named messages"
    ]


@pytest.mark.parametrize("label", [True, 1, "1", "true", "False", "good", "undesirable", "👎"])
@pytest.mark.parametrize("row", [{"prompt": "?", "completion": "!"}, {"messages": [QUESTION, answer("!")]}])
def test_thumbs_in_every_spelling_are_seen(read, row, label):
    with pytest.raises(DataError, match="thumb up or down") as error:
        read([{**row, "label": label}])
    assert "delete the column" in error.value.fix


def test_a_label_that_is_no_thumb_is_left_alone(read):
    assert read([{"prompt": "?", "completion": "!", "label": "arithmetic"}]).trained() == ["!<|im_end|>"]


@pytest.mark.parametrize(("label", "text"), [("positive", "positive"), (1, "1"), (0, "0"), (False, "false")])
def test_labels_beside_text_are_never_dropped_in_silence(read, label, text):
    row = {"text": "Fine!", "label": label}
    with pytest.raises(DataError, match=r"texts with labels \(text, label\)") as error:
        read([row])
    learn, plain = re.findall(r"--columns '(\{.*?\})'", error.value.fix)
    assert read([row], columns=learn).trained() == [f"{text}<|im_end|>"]
    assert read([row], columns=plain).texts() == ["Fine!<|im_end|>"]


def test_class_labels_of_the_datasets_library_are_trained_by_name(read, tmp_path):
    import datasets

    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    table = datasets.Dataset.from_dict({"sentence": ["Fine!", "No."], "label": [1, 0]}, features=features)
    table.to_parquet(tmp_path / "rows.parquet")
    table.save_to_disk(tmp_path / "saved")
    columns = json.dumps({"sentence": "query", "label": "response"})
    for source in (tmp_path / "rows.parquet", tmp_path / "saved"):
        assert read(source, columns=columns).answers() == ["good<|im_end|>", "bad<|im_end|>"]
