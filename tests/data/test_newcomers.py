"""What a first user mistypes or does not know: the cause is named, and the way out can be pasted."""

from __future__ import annotations

import json

import pytest

from adaptft.data.sources import resolve
from adaptft.errors import DataError

TURNS = [{"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Well."}]
ALPACA = {"instruction": "Add 1 and 2.", "output": "3"}


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"frage": "Was?", "antwort": "Das."}, '{"frage": "query", "antwort": "response"}'),
        ({"questoin": "What?", "a": "That."}, '{"questoin": "question", "a": "response"}'),
        ({"q": "What?", "a": "That.", "id": 7}, '{"q": "query", "a": "response"}'),
    ],
)
def test_unknown_columns_get_a_mapping_to_paste(row, example, read):
    with pytest.raises(DataError) as refused:
        read([row])
    assert f"--columns '{example}'" in refused.value.fix
    assert "Known forms: OpenAI messages" in refused.value.fix


def test_the_pasted_mapping_works(read):
    with pytest.raises(DataError) as refused:
        read([{"frage": "Was?", "antwort": "Das."}])
    pasted = refused.value.fix.split("'")[1]
    assert read([{"frage": "Was?", "antwort": "Das."}], columns=pasted).report.num_accepted == 1


@pytest.mark.parametrize("rows", [[{"frage": "Was?", "antwort": "Das."}], [ALPACA]], ids=["no form", "a form"])
def test_a_mapping_of_a_column_that_is_not_there_says_what_the_file_lacks(rows, read):
    with pytest.raises(DataError) as refused:
        read(rows, columns='{"ask": "query", "antwort": "response"}')
    assert "lacks" in refused.value.problem
    assert "ask" in refused.value.problem
    assert next(iter(rows[0])) in refused.value.fix


def test_rows_of_another_form_are_named_with_their_lines_and_columns(read):
    others = [{"question": "What?", "answer": "That."}] * 20
    with pytest.raises(DataError) as refused:
        read([ALPACA] * 20 + others, max_bad_rows=0.01)
    assert "other columns (question, answer) than instruction" in refused.value.problem
    assert "21-30, ..." in refused.value.problem
    assert "into another one" in refused.value.fix


@pytest.mark.parametrize(
    ("row", "reason", "fix"),
    [
        ({"messages": TURNS[1:] * 2}, "no question before the answer", "put a user message before the answer"),
        ({"messages": TURNS[:1]}, "no answer", "add an assistant message"),
        ({"messages": TURNS, "images": ["a.png"]}, "has images; only text can be trained", "trains on text"),
        ({"messages": TURNS, "video": "a.mp4"}, "has video; only text can be trained", "trains on text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, TURNS[1]]},
            "a part of type image_url; only text",
            "trains on text",
        ),
    ],
)
def test_a_row_that_cannot_be_trained_says_why_and_what_mends_it(row, reason, fix, read):
    with pytest.raises(DataError) as refused:
        read([row])
    assert reason in refused.value.problem
    assert fix in refused.value.fix
    assert "not empty" not in refused.value.fix


@pytest.mark.parametrize("empty", [[], None, ""])
def test_empty_columns_of_images_are_no_images(empty, read):
    assert read([{"messages": TURNS, "images": empty}]).report.num_accepted == 1


@pytest.mark.parametrize(
    ("rows", "warned"),
    [
        ([TURNS, [{"role": "user", "content": "Say <|im_end|> twice."}, TURNS[1]]], "1 row: the text holds <|im_end|>"),
        ([[TURNS[0], {"role": "assistant", "content": "<|endoftext|>"}]] * 2, "2 rows: the text holds <|endoftext|>"),
        ([TURNS], None),
    ],
)
def test_control_tokens_in_the_text_are_counted_with_their_first_line(rows, warned, read):
    warnings = " ".join(read([{"messages": turns} for turns in rows]).report.warnings)
    if warned is None:
        assert "control tokens" not in warnings
    else:
        assert warned in warnings
        line = next(number for number, turns in enumerate(rows, 1) if "<|" in json.dumps(turns))
        assert f"line {line} of rows.jsonl" in warnings


def test_control_tokens_in_plain_text_are_said_too(read):
    assert any("<|im_start|>" in warning for warning in read([{"text": "a <|im_start|> b"}]).report.warnings)


MANY = [*TURNS, *TURNS]
REASONED = [TURNS[0], {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."}, *TURNS]


@pytest.mark.parametrize(
    ("rows", "said", "unsaid"),
    [
        ([REASONED], "only the last answer of each row (1 row with more than one; the warning says why)", "earlier"),
        ([MANY, REASONED], "not in 1 of them, as the warning says", "only the last answer"),
        ([MANY], "earlier ones of a conversation too (1 row with more than one; mask_history", "warning"),
    ],
)
def test_the_loss_and_the_warning_do_not_contradict_each_other(rows, said, unsaid, read):
    report = read([{"messages": turns} for turns in rows], "qwen3").report
    assert said in report.in_the_loss
    assert unsaid not in report.in_the_loss
    assert any("earlier answers are not in the loss" in warning for warning in report.warnings) is (rows != [MANY])


@pytest.mark.parametrize("name", ["alpaca.jsnl", "alpaca.josnl", "data/alpaca.jsnl", "alpca.jsonl", "alpaca.JSN#50"])
def test_a_misspelt_file_gets_the_nearest_and_is_not_looked_up_on_a_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for folder in (tmp_path, tmp_path / "data"):
        (folder / "alpaca.jsonl").write_text(json.dumps(ALPACA))
    with pytest.raises(DataError) as refused:
        resolve((name,))
    assert "does not exist" in refused.value.problem
    assert "alpaca.jsonl?" in refused.value.fix


@pytest.mark.parametrize("name", ["org/set-v1.5", "tatsu-lab/alpaca", "squad", "org/my.dataset:main#10"])
def test_ids_with_dots_are_still_ids(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve((name,))[0].hub_id is not None


@pytest.mark.parametrize("name", ["identity", "alpaca_en_demo", "alpaca_en_demo#100"])
def test_names_that_only_llama_factory_knows_are_said_to_be_so(name):
    with pytest.raises(DataError) as refused:
        resolve((name,))
    assert "LLaMA-Factory's own data/dataset_info.json" in refused.value.problem
    assert f"--dataset LLaMA-Factory/data/{name.partition('#')[0]}" in refused.value.fix


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_a_variable_that_forbids_the_network_is_named(variable, monkeypatch):
    from adaptft.data.hub import _unreachable
    from adaptft.models import hub

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    (source,) = resolve(("org/rows",))
    assert "is set" not in _unreachable(source, OSError("no route")).problem
    assert "cannot be reached" in hub._unreachable("org/m", "Hugging Face", "x").problem
    monkeypatch.setenv(variable, "1")
    assert f"{variable} is set" in _unreachable(source, OSError("no route")).problem
    refused = hub._unreachable("org/m", "Hugging Face", "x")
    assert f"{variable} is set" in refused.problem
    assert f"{variable}=0" in refused.fix
