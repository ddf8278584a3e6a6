"""What columns are called: in Chinese, and as the user says."""

import pytest

from adaptft.errors import DataError


@pytest.mark.parametrize(
    ("row", "dialect"),
    [
        ({"问题": "Why?", "答案": "So."}, "question/answer (问题, 答案)"),
        ({"提问": "Why?", "回答": "So.", "来源": "x"}, "question/answer (提问, 回答; ignored: 来源)"),
        ({"問題": "Why?", "答案": "So."}, "question/answer (問題, 答案)"),
        ({"指令": "Why?", "输入": "", "输出": "So."}, "Alpaca (指令, 输出, 输入)"),
        ({"输入": "Why?", "输出": "So."}, "input/output (输入, 输出)"),
        ({"問": "Why?", "答": "So."}, "问/答 (問, 答)"),
        ({"question": "Why?", "response": "So."}, "question/answer (question, response)"),
        ({"question": "Why?", "回复": "So.", "系统提示": "Be brief."}, "question/answer (question, 回复, 系统提示)"),
    ],
)
def test_chinese_columns_are_known(read, row, dialect):
    rows = read([row])
    assert rows.report.dialect == dialect
    assert rows.answers() == ["So.<|im_end|>"]


def test_a_chinese_spreadsheet_is_read(read, tmp_path):
    (tmp_path / "a.csv").write_text("\ufeff问题;答案\nWhy?;So.\n")
    assert read(tmp_path / "a.csv").answers() == ["So.<|im_end|>"]


@pytest.mark.parametrize(
    ("row", "columns", "dialect"),
    [
        ({"q": "Why?", "a": "So."}, '{"q": "query", "a": "response"}', "query/response (q, a)"),
        (
            {"q": "Why?", "a": "So.", "instruction": "x"},
            '{"q": "query", "a": "response"}',
            "query/response (q, a; ignored: instruction)",
        ),
        ({"chat": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]},
         '{"chat": "messages"}', "OpenAI messages (chat)"),
    ],
)  # fmt: skip
def test_columns_have_the_names_that_the_user_gives_them(read, row, columns, dialect):
    rows = read([row], columns=columns)
    assert rows.report.dialect == dialect
    assert rows.answers() == ["So.<|im_end|>"]


def test_the_cache_tells_one_mapping_from_another(read):
    row = {"q": "Why?", "a": "So.", "b": "Thus."}
    assert read([row], columns='{"q": "query", "a": "response"}').answers() == ["So.<|im_end|>"]
    assert read([row], columns='{"q": "query", "b": "response"}').answers() == ["Thus.<|im_end|>"]


@pytest.mark.parametrize(
    ("columns", "problem", "fix"),
    [
        ('{"q": "query", "a": "reponse"}', "maps to reponse", "Did you mean response?"),
        ('{"q": "query", "a": "response", "z": "system"}', "names z, which the data lacks", "The columns are a, q"),
        ('["q"]', "no mapping of names", "query"),
    ],
)
def test_a_slip_in_the_mapping_is_refused(read, columns, problem, fix):
    with pytest.raises(DataError, match=problem) as caught:
        read([{"q": "Why?", "a": "So."}], columns=columns)
    assert fix in caught.value.fix
