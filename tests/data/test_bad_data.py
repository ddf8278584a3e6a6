"""What a user can get wrong with data: two lines, what is wrong and how to mend it; bad rows are counted by reason."""

from __future__ import annotations

import json

import pytest

from adaptft.errors import DataError

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
LINE = json.dumps(GOOD).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content", "problem", "fix"),
    [
        ("missing.jsonl", None, "does not exist", "Check the path"),
        ("a.jsonl", b"", "is empty", "one row a line"),
        ("a.jsonl", b"\n \n", "holds no rows", "one row a line"),
        ("a.json", b"[]", "holds no rows", "one row a line"),
        ("a.jsonl", b'{"messages": [', "is broken JSON, line 1", "one JSON object a line"),
        (
            "a.json",
            b'[\n{"text": "a"},\n{"text" "b"}\n]',
            "a.json is broken JSON: Expecting ':' delimiter, line 3",
            "Mend that line",
        ),
        ("a.json", b'[{"text": "a"}', "is broken JSON: ']' expected, line 1", "Mend that line"),
        ("a.json", b'[{"text": "a"}] x', "text after the end of the list", "Mend that line"),
        ("a.jsonl", b'["a"]\n["b"]\n', "text after the end of the list", "Mend that line"),
        ("a.jsonl", b"5\n", "holds no objects with columns", "one JSON object a line"),
        (
            "a.jsonl",
            b'{"quetion": "?", "anwser": "!"}',
            "has the columns quetion, anwser",
            '--columns \'{"quetion": "question", "anwser": "answer"}\' (a guess)',
        ),
        (
            "a.jsonl",
            b'{"prompt": "?", "chosen": "!", "rejected": "x"}',
            "holds preference pairs",
            "--columns '{",
        ),
        (
            "a.jsonl",
            b'{"instruction": "?", "output": "!", "chosen": "!", "rejected": "x"}',
            "holds preference pairs",
            "--columns '{",
        ),
        (
            "a.jsonl",
            b'{"prompt": "?", "completion": "!", "label": true}',
            r"thumb up or down \(KTO\)",
            "Keep the rows with a good answer",
        ),
        ("a.jsonl", b'{"prompt": "?"}', "has the columns prompt", "Known forms"),
        ("a.parquet", b"no parquet", "Cannot read .*a.parquet as Parquet", "whole"),
        ("a.arrow", b"no arrow at all", "Cannot read .*a.arrow as Arrow", "whole"),
        ("a.jsonl.gz", b"no gzip", "Cannot read .*a.jsonl.gz", "whole"),
        ("a.xlsx", b"x", "is of no known data format", ".csv"),
        ("a.json", b'[{"text": "\xff"}]', "is not UTF-8 text", "UTF-8"),
    ],
)
def test_refused_in_two_lines(read, tmp_path, name, content, problem, fix):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        read(path)
    assert fix in error.value.fix
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"messages": [', "broken JSON"),
        (b'{"messages": "\xff"}', "not UTF-8"),
        (b"[" * 200_000, "JSON nested too deeply"),
        (b'{"messages": ' + b"[" * 200_000 + b"}", "JSON nested too deeply"),
        (b"[1]", "not an object with columns"),
        (b"{}", "other columns (none) than messages"),
        (b'{"messages": []}', "no messages"),
        (b'{"messages": "Hi"}', "messages is text, not a list"),
        (b'{"messages": [5]}', "message that is not an object"),
        (b'{"messages": [{"content": "Hi"}]}', "message without a role"),
        (b'{"messages": [{"role": "wizard"}]}', "message with the unknown role 'wizard'"),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}', "no answer"),
        (b'{"messages": [{"role": "user", "content": {"a": 1}}]}', "user message is an object, not text"),
    ],
)
def test_bad_line_is_rejected_alone_with_its_number(read, tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE + b"\n" + line + b"\n" + LINE)
    rows = read(path)
    assert rows.rejected() == {reason: (3,)}
    assert len(rows.rows) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a\ud800b", "answer has half of a surrogate pair (a cut emoji)"),
        ("a\0b", "answer has a NUL character (is the file UTF-16, or damaged?)"),
        ([{"type": "image_url", "image_url": "x"}], "answer has a part of type image_url; only text can be trained"),
        ({"a": 1}, "answer is an object, not text"),
        ([[1]], "answer is a list of something other than text parts"),
        (None, "empty answer"),
        (" \n", "empty answer"),
        ([], "empty answer"),
        (float("nan"), "empty answer"),
    ],
)
@pytest.mark.parametrize("dialect", ["messages", "alpaca", "sharegpt"])
def test_answers_that_are_no_text_reject_the_row(read, dialect, content, reason):
    def row(answer):
        return {
            "messages": {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]},
            "alpaca": {"instruction": "?", "output": answer},
            "sharegpt": {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": answer}]},
        }[dialect]

    assert read([row("!"), row(content)]).rejected() == {reason: (2,)}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (7, "7"),
        (3.5, "3.5"),
        (True, "true"),
        (0, "0"),
        (False, "false"),
        ("None", "None"),
        ("null", "null"),
        ("😀", "😀"),
        ('[{"role": "user"}]', '[{"role": "user"}]'),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", "b"], "a\nb"),
        ({"type": "text", "text": "a"}, "a"),
        ([{"text": "a"}], "a"),
    ],
)
@pytest.mark.parametrize(
    "columns", [("instruction", "output"), ("prompt", "completion"), ("question", "answer"), ("query", "response")]
)
def test_odd_contents_are_the_text_they_stand_for(read, columns, content, text):
    assert read([{columns[0]: "?", columns[1]: content}]).trained() == [f"{text}<|im_end|>"]


def test_deep_row_of_a_list_is_rejected_and_the_rest_is_read(read, tmp_path):
    deep = '{"text": ' + "[" * 100_000 + '"]"' + "]" * 100_000 + "}"
    (tmp_path / "a.json").write_text(f'[{{"text": "a"}},\n{deep},\n{{"text": "b"}}]')
    rows = read(tmp_path / "a.json")
    assert rows.texts() == ["a<|im_end|>", "b<|im_end|>"]
    assert rows.rejected() == {"JSON nested too deeply": (2,)}


def test_too_many_bad_rows_stop_with_reasons_lines_and_the_way_to_raise_the_limit(read):
    empty = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]}
    rows = [GOOD, empty, GOOD, empty, {"messages": []}, GOOD, GOOD, GOOD]
    with pytest.raises(DataError) as error:
        read(rows, max_bad_rows=0.01)
    assert error.value.problem == (
        "3 of 8 rows cannot be used, more than max_bad_rows 0.01 allows: "
        "empty answer: 2 (rows.jsonl, line 2, 4); no messages: 1 (rows.jsonl, line 5)."
    )
    assert error.value.fix.endswith("--max_bad_rows 0.38")
    assert len(read(rows, max_bad_rows=0.38).rows) == 5


def test_no_trainable_row_says_why(read):
    with pytest.raises(DataError, match="has a token to train on: empty answer: 2") as error:
        read([{"instruction": "?", "output": ""}, {"instruction": "?", "output": None}])
    assert "Alpaca (instruction, output)" in error.value.fix


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (
            {"instruction": "?", "input": "", "output": "!", "text": "all"},
            "Alpaca (instruction, output, input; ignored: text)",
        ),
        ({"instruction": "?", "context": "", "response": "!"}, "Alpaca (instruction, response, context)"),
        ({"prompt": "?", "completion": "!"}, "prompt/completion (prompt, completion)"),
        (
            {"prompt": [{"role": "user", "content": "?"}], "completion": [{"role": "assistant", "content": "!"}]},
            "prompt/completion (prompt, completion)",
        ),
        (
            {"system_prompt": "Be.", "question": "?", "response": "!"},
            "question/answer (question, response, system_prompt)",
        ),
        ({"problem": "?", "solution": "!", "answer": "x"}, "problem/solution (problem, solution; ignored: answer)"),
        (
            {"conversations": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]},
            "OpenAI messages (conversations)",
        ),
        ({"conversation": [{"human": "?", "assistant": "!"}]}, "ms-swift pairs (conversation)"),
        (
            {"messages": json.dumps([*GOOD["messages"][:1], {"role": "assistant", "content": "!"}])},
            "OpenAI messages (messages)",
        ),
        ({"input": "?", "output": "!"}, "input/output (input, output)"),
    ],
)
def test_verdict_on_the_columns(read, row, verdict):
    rows = read([row])
    assert rows.report.dialect == verdict
    assert rows.trained() == ["!<|im_end|>"]


def test_columns_are_the_union_over_the_first_rows(read):
    rows = read(
        [{"instruction": "?", "output": "!"}, {"instruction": "Add.", "input": "1+1", "output": "2", "system": "Be."}]
    )
    assert rows.report.dialect == "Alpaca (instruction, output, system, input)"
    assert "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nAdd.\n1+1<|im_end|>" in rows.texts()[1]


def test_swift_s_pretraining_rows_are_plain_text(read):
    assert read([{"messages": [{"role": "assistant", "content": "Once."}]}]).texts() == ["Once.<|im_end|>"]


def test_answers_inside_a_prompt_of_messages_are_not_trained(read):
    prompt = [*GOOD["messages"], {"role": "user", "content": "And?"}]
    assert read([{"prompt": prompt, "completion": "So."}]).trained() == ["So.<|im_end|>"]


def test_default_system_prompt_is_for_rows_that_have_none(read):
    rows = read([GOOD, {"messages": [{"role": "system", "content": "Own."}, *GOOD["messages"]]}], system="Mine.")
    assert ["Mine." in text for text in rows.texts()] == [True, False]
