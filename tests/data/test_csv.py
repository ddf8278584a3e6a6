"""CSV as spreadsheets write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptft.errors import DataError

EXCEL = (
    "instruction,input,output\r\n"
    'Write a poem.,,"Rain on the roof,\nthe cat is aloof."\r\n'
    'Which is a fruit?,"chair, lamp",None\r\n'
    "Fill in.,,N/A\r\n"
    'Quote.,"It reads ""STOP""","It reads ""STOP"", in red."\r\n'
    "Ticket.,ticket 007,007\r\n"
    '一行,,"第一行\r\n第二行"\r\n'
    "SQL?,,NULL\r\n"
    "Left empty,,\r\n"
    ",,\r\n"
)
ANSWERS = [
    "Rain on the roof,\nthe cat is aloof.",
    "None",
    "N/A",
    'It reads "STOP", in red.',
    "007",
    "第一行\r\n第二行",
    "NULL",
]


def write(folder: Path, text: str, encoding: str = "utf-8", name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_cell_is_the_text_that_was_typed(read, tmp_path, encoding, delimiter):
    import csv
    import io

    table = io.StringIO()
    csv.writer(table, delimiter=delimiter, lineterminator="\r\n").writerows(csv.reader(io.StringIO(EXCEL, newline="")))
    rows = read(write(tmp_path, table.getvalue(), encoding))
    assert rows.answers() == [f"{answer}<|im_end|>" for answer in ANSWERS]
    assert rows.rejected() == {"empty answer": (8,)}
    assert "<|im_start|>user\nWrite a poem.<|im_end|>" in rows.texts()[0], "no nan, no None, no newline at the end"


def test_separator_line_of_excel_is_obeyed(read, tmp_path):
    rows = read(write(tmp_path, "sep=;\r\ninstruction;output\r\nSay, ja;Ja, gern.\r\n", "utf-8-sig"))
    assert rows.answers() == ["Ja, gern.<|im_end|>"]


def test_headers_may_have_spaces_and_capitals(read, tmp_path):
    assert read(write(tmp_path, "Question , ANSWER\n1+1?,2\n")).answers() == ["2<|im_end|>"]


def test_short_rows_lack_cells_and_long_rows_are_rejected(read, tmp_path):
    rows = read(write(tmp_path, "instruction,output,input\nSay a.,a\nSay b.,b,,\nSay c.,c,,more\n"))
    assert rows.answers() == ["a<|im_end|>", "b<|im_end|>"]
    assert rows.rejected() == {"more cells than the header has columns": (3,)}


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("instruction,output,output\nSay.,one,uno\n", "more than one column named output", "Rename"),
        ("instruction,output, Output\nSay.,one,uno\n", "more than one column named output", "Rename"),
        ('instruction,output\nSay.,"one\n', "broken CSV: unexpected end of data, line 2", "Double the quotation"),
        (
            "instrucion,out\nSay.,one\n",
            "has the columns instrucion, out",
            '{"instrucion": "instruction", "out": "response"}',
        ),
        ("instruction,output\n", "holds no rows", "one row a line"),
    ],
)
def test_refused_with_what_to_mend(read, tmp_path, text, problem, fix):
    with pytest.raises(DataError, match=problem) as error:
        read(write(tmp_path, text))
    assert fix in error.value.fix
    assert len(str(error.value).splitlines()) == 2


def test_text_in_another_encoding_is_refused_with_the_way_to_utf8(read, tmp_path):
    with pytest.raises(DataError, match="is not UTF-8 text") as error:
        read(write(tmp_path, "instruction,output\n什么是银行？,存钱的地方。\n", "gb18030"))
    assert "iconv" in error.value.fix


def test_blank_lines_before_the_header_are_passed_over(read, tmp_path):
    rows = read(write(tmp_path, "\r\n\r\ninstruction,output\r\n\r\nSay a.,b\r\n"))
    assert rows.answers() == ["b<|im_end|>"]
