"""Files of every format, encodings, folders, selectors and LLaMA-Factory's registrations."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import pytest

from adaptft import data
from adaptft.data.sources import resolve
from adaptft.errors import DataError

ROWS = [{"instruction": f"Say {i}.", "input": "", "output": f"{i}, é 说"} for i in range(5)]
ANSWERS = [f"{i}, é 说<|im_end|>" for i in range(5)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def write_table(path: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(ROWS)
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES.encode()),
        ("a.json", LINES.encode()),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps(ROWS, indent=1).encode()),
        ("a.jsonl", json.dumps(ROWS).encode()),
        ("a.json", b"\xef\xbb\xbf" + LINES.encode()),
        ("a.jsonl", LINES.replace("\n", "\r\n").encode()),
        ("a.jsonl", ("\n" + LINES + "\n\n").encode()),
        ("a.jsonl", LINES.encode("utf-16")),
        ("a.json", json.dumps(ROWS).encode("utf-16")),
        ("a.jsonl.gz", gzip.compress(LINES.encode())),
        ("a.json.bz2", bz2.compress(LINES.encode())),
        ("a.json.gz", gzip.compress(json.dumps(ROWS).encode())),
        ("a.jsonl", LINES.rstrip().encode()),
    ],
)
def test_json_in_every_wrapping(read, tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    assert read(path).answers() == ANSWERS


def test_zst(read, tmp_path):
    import pyarrow as pa

    with pa.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as stream:
        stream.write(LINES.encode())
    assert read(tmp_path / "a.jsonl.zst").answers() == ANSWERS


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_tables(read, tmp_path, kind):
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write_table(path, kind)
    assert read(path).answers() == ANSWERS


def test_lines_of_text_are_rows_and_blank_lines_are_not(read, tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfOne line.\r\n\r\nNone\n\xff\xfe\nlast")
    rows = read(path)
    assert rows.texts() == ["One line.<|im_end|>", "None<|im_end|>", "last<|im_end|>"]
    assert rows.rejected() == {"not UTF-8": (4,)}
    assert rows.report.dialect == "plain text, a row a line (text)"


BOOK = (
    "It was the best of times,\nit was the worst of\ntimes.\n\n\nIt was the age of wisdom, it\r\nwas the age of\n"
    "foolishness.\n\nThe end.\n"
)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        (
            BOOK,
            ["It was the best of times,\nit was the worst of\ntimes.",
             "It was the age of wisdom, it\nwas the age of\nfoolishness.", "The end."],
        ),
        ("三人行，必有我师焉，择其善者\n而从之。\n\n学而时习之，不亦说乎，有朋自\n远方来。\n",
         ["三人行，必有我师焉，择其善者\n而从之。", "学而时习之，不亦说乎，有朋自\n远方来。"]),
    ],
)  # fmt: skip
def test_hard_wrapped_text_is_read_by_paragraphs(read, tmp_path, text, texts):
    (tmp_path / "book.txt").write_bytes(text.encode())
    rows = read(tmp_path / "book.txt")
    assert rows.texts() == [f"{row}<|im_end|>" for row in texts]
    assert rows.report.dialect == "plain text, a row a paragraph (text)"
    assert read(Path(f"{tmp_path}/book.txt#1")).texts() == [f"{texts[0]}<|im_end|>"]


def test_a_bad_paragraph_is_named_by_its_first_line(read, tmp_path):
    (tmp_path / "book.txt").write_bytes(BOOK.encode() + b"\nbad \xff\nline\n")
    assert read(tmp_path / "book.txt").rejected() == {"not UTF-8": (12,)}


@pytest.mark.parametrize(
    "text",
    [
        "One text.\nTwo texts.\nThree texts.\n\nFour texts.\nFive texts.\n",
        "no blank lines\nat all here\n",
        "one\n\ntwo\n\nthree\n",
        "long " * 40 + "\n" + "long " * 40 + "\n\n" + "long " * 40 + "\n" + "long " * 40 + "\n",
    ],
)
def test_texts_one_a_line_stay_rows_of_their_own(read, tmp_path, text):
    (tmp_path / "lines.txt").write_text(text)
    rows = read(tmp_path / "lines.txt")
    assert len(rows.rows) == len([line for line in text.splitlines() if line])
    assert rows.report.dialect == "plain text, a row a line (text)"


def test_long_list_is_read_across_chunks(read, tmp_path, monkeypatch):
    monkeypatch.setattr("adaptft.data.json_files._CHUNK_CHARACTERS", 7)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=2, ensure_ascii=False))
    assert read(path).answers() == ANSWERS


@pytest.mark.parametrize(("limit", "count"), [("#2", 2), ("#99", 5)])
def test_selector_takes_rows_from_the_start(read, tmp_path, limit, count):
    (tmp_path / "a.jsonl").write_text(LINES)
    assert read(Path(f"{tmp_path}/a.jsonl{limit}")).answers() == ANSWERS[:count]


def test_file_whose_name_looks_like_a_selector_is_that_file(read, tmp_path):
    (tmp_path / "a#1.jsonl").write_text(LINES)
    assert len(read(tmp_path / "a#1.jsonl").rows) == 5


def test_folder_gives_all_its_data_files_in_order(read, tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.jsonl").write_text(LINES.splitlines()[1])
    (folder / "a.jsonl").write_text(LINES.splitlines()[0])
    (folder / "deep" / "c.jsonl").write_text(LINES.splitlines()[2])
    (folder / "README.md").write_text("not data")
    (folder / ".hidden.jsonl").write_text("not data")
    assert read(folder).answers() == ANSWERS[:3]


def test_registration_of_llamafactory_names_columns_and_roles(read, tmp_path):
    own = [{"ask": "Say 1.", "reply": "1"}]
    talk = [{"dialog": [{"who": "asker", "says": "Hi"}, {"who": "helper", "says": "Hello"}], "rules": "Be kind."}]
    (tmp_path / "own.json").write_text(json.dumps(own))
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    (tmp_path / "web.jsonl").write_text('{"body": "Once."}\n')
    (tmp_path / "dataset_info.json").write_text(
        json.dumps(
            {
                "own": {"file_name": "own.json", "columns": {"prompt": "ask", "response": "reply"}},
                "talk": {
                    "file_name": "talk.json",
                    "formatting": "sharegpt",
                    "columns": {"messages": "dialog", "system": "rules"},
                    "tags": {"role_tag": "who", "content_tag": "says", "user_tag": "asker", "assistant_tag": "helper"},
                },
                "web": {"file_name": "web.jsonl", "columns": {"prompt": "body"}},
                "pairs": {
                    "file_name": "pairs.json",
                    "ranking": True,
                    "columns": {"prompt": "ask", "chosen": "good", "rejected": "poor"},
                },
                "code": {"script_url": "x.py", "columns": {}},
            }
        )
    )
    assert read(tmp_path / "own").answers() == read(tmp_path / "own#1").answers() == ["1<|im_end|>"]
    talked = read(tmp_path / "talk.json")
    assert talked.trained() == ["Hello<|im_end|>"]
    assert talked.texts()[0].startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert read(tmp_path / "web").trained() == ["Once.<|im_end|>"]
    (tmp_path / "pairs.json").write_text('[{"ask": "?", "good": "yes", "poor": "no"}]')
    asked = read(tmp_path / "pairs", columns='{"ask": "query", "good": "response"}')
    assert asked.trained() == ["yes<|im_end|>"]
    with pytest.raises(DataError, match="preference pairs"):
        read(tmp_path / "pairs")
    with pytest.raises(DataError, match="neither file_name") as error:
        read(tmp_path / "code")
    assert "scripts are not run" in error.value.fix


@pytest.mark.parametrize(
    ("name", "hub", "hub_id", "subset", "limit"),
    [
        ("owner/name", "hf", "owner/name", None, None),
        ("owner/name:main#500", "hf", "owner/name", "main", 500),
        ("hf::owner/name", "hf", "owner/name", None, None),
        ("ms::owner/name:a", "modelscope", "owner/name", "a", None),
        ("gsm8k", "hf", "gsm8k", None, None),
    ],
)
def test_hub_names(name, hub, hub_id, subset, limit):
    (source,) = resolve((name,))
    assert (source.hub, source.hub_id, source.subset, source.limit) == (hub, hub_id, subset, limit)


def test_unreachable_hub_says_what_to_do_offline(read, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="Cannot load the data set owner/nothing-here from Hugging Face") as error:
        read(Path("owner/nothing-here"))
    assert "hf download --repo-type dataset owner/nothing-here" in error.value.fix
    assert len(str(error.value).splitlines()) == 2


@pytest.mark.parametrize(("part", "count"), [("train", 800), ("test", 100)])
def test_built_in_rows_come_with_their_licence(read, part, count):
    rows = read(data.builtin(part))
    assert (len(rows.rows), rows.report.num_rejected) == (count, 0)
    assert rows.report.dialect == "question/answer (question, answer)"
    assert "MIT License" in (data.builtin(part).parent / "LICENSE.txt").read_text()
