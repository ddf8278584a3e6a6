"""What people's files really hold: odd bytes, slips, rows of other columns, lines without an end."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time

import pytest

from adaptft import data
from adaptft.data import streams
from adaptft.errors import DataError

GOOD = {"instruction": "Say.", "output": "Said."}
LINE = json.dumps(GOOD).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (rb'{"instruction": "?", "output": "C:\Users\me"}',
         "broken JSON: a backslash that is not doubled (a Windows path?)"),
        (b'{"instruction": "?", "output": "a\tb"}',
         "broken JSON: a line break or tab inside a text that is not written \\n or \\t"),
        (b'{"instruction": "?", "output": "a\x00b"}',
         "broken JSON: a line break or tab inside a text that is not written \\n or \\t"),
        (b'{"instruction": "?", "output": "a", "output": "b"}', "a key twice in one object, with different values"),
        (b'{"instruction": "?", "output": "\\ud83d"}', "answer has half of a surrogate pair (a cut emoji)"),
        (b'{"question": "?", "answer": "!"}', "other columns (question, answer) than instruction, output"),
        (b'{"instruction": "?", "answer": "!"}', "other columns (instruction, answer) than instruction, output"),
        (b'{"messages": []}', "other columns (messages) than instruction, output"),
        (b'{"instruction": "?", "output": ' + b"9" * 5000 + b"}", "broken JSON"),
        ('{"instruction": "?", "output": "你好"}'.encode("gb18030"), "not UTF-8"),
    ],
)  # fmt: skip
def test_a_slip_is_counted_by_what_it_is_and_where(read, tmp_path, line, reason):
    (tmp_path / "a.jsonl").write_bytes(LINE + line + b"\r\n" + LINE)
    rows = read(tmp_path / "a.jsonl")
    assert rows.rejected() == {reason: (2,)}
    assert len(rows.rows) == 2


def test_what_is_harmless_is_read(read, tmp_path):
    twice = b'{"instruction": "Say.", "output": "Said.", "output": "Said."}\r\n'
    paths = json.dumps({"instruction": "Where?", "output": "C:\\new\\table"}).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + LINE + b"\xef\xbb\xbf" + LINE + twice + paths)
    rows = read(tmp_path / "a.jsonl")
    assert rows.answers() == ["Said.<|im_end|>"] * 3 + ["C:\\new\\table<|im_end|>"]


def test_foreign_text_in_a_reason_is_made_printable(read):
    messages = [{"role": "a\nb\x1b[31m", "content": "?"}]
    assert list(read([{"messages": messages}, {"messages": [{"role": "user", "content": "?"},
                {"role": "assistant", "content": "!"}]}]).rejected()) == [
        r"message with the unknown role 'a\nb\x1b[31m'"
    ]  # fmt: skip


def test_key_twice_in_a_row_of_a_list_rejects_that_row(read, tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "b", "x": {"k": "]", "k": 2}}, {"text": "c"}]')
    rows = read(tmp_path / "a.json")
    assert rows.texts() == ["a<|im_end|>", "c<|im_end|>"]
    assert rows.rejected() == {"a key twice in one object, with different values": (2,)}


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.jsonl.gz"])
def test_a_line_without_an_end_is_rejected_and_the_rest_is_read(read, tmp_path, monkeypatch, name):
    monkeypatch.setattr(streams, "LONGEST_ROW", 1000)
    line = LINE if ".jsonl" in name else b"text\n"
    content = line + b'{"output": "' + b"x" * 5000 + b'"}\n' + line + b"y" * 1000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    rows = read(tmp_path / name)
    assert rows.rejected() == {streams.TOO_LONG: (2, 4)}
    assert len(rows.rows) == 2


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", 'instruction,output\n?,"never closed ' + "x" * 2000, "a row of more than 16 MiB"),
        ("a.csv", 'instruction,output\n?,"never closed ' + "x\n" * 2000, "field larger than field limit"),
        ("a.json", '[{"text": "' + "x" * 3000 + '"}]', "a row of more than 16 MiB .*line 1"),
    ],
)
def test_a_row_without_an_end_stops_formats_that_have_no_lines(read, tmp_path, monkeypatch, name, content, problem):
    from adaptft.data import csv_files, json_files

    for module in (streams, csv_files, json_files):
        monkeypatch.setattr(module, "LONGEST_ROW", 1000)
    monkeypatch.setattr(json_files, "_CHUNK_CHARACTERS", 100)
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=problem):
        read(tmp_path / name)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_compressed_file_that_was_cut_is_refused(read, tmp_path, kind):
    import pyarrow as pa

    content = b"".join(json.dumps({"text": f"row {i} {hash(i)}"}).encode() + b"\n" for i in range(2000))
    whole = gzip.compress(content) if kind == "gz" else pa.compress(content, "zstd", asbytes=True)
    (tmp_path / f"a.jsonl.{kind}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="Cannot read"):
        read(tmp_path / f"a.jsonl.{kind}")


def test_joined_gzip_files_are_read_to_the_end(read, tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINE) + gzip.compress(LINE))
    assert len(read(tmp_path / "a.jsonl.gz").rows) == 2


def test_columns_that_are_twice_in_a_table_are_refused(read, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table([["?"], ["a"], ["b"]], names=["instruction", "output", "output"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="more than one column named output"):
        read(tmp_path / "a.parquet")


def test_a_damaged_table_is_an_error_and_no_crash(read, tmp_path):
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": ["héllo"] * 9}))
    content = bytearray(sink.getvalue())
    place = bytes(content).index("héllo".encode())
    content[place + 1] = 0xFF
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"Cannot read .* as Arrow"):
        read(tmp_path / "a.arrow")


def test_a_conversation_of_thousands_of_messages_takes_no_minutes(read):
    talk = [{"role": role, "content": "x"} for _ in range(5000) for role in ("user", "assistant")]
    began = time.monotonic()
    rows = read([{"messages": talk}, {"messages": talk[:600]}])
    assert rows.rejected() == {"more than 1,000 messages": (1,)}
    assert time.monotonic() - began < 20


def test_the_sample_shown_is_a_row_that_is_kept(read):
    answers = ["long " * 400, "longer " * 500, "short", "middle " * 60, "shorter " * 20]
    tokenized = read([{"instruction": "?", "output": text} for text in answers]).tokenized
    assert tokenized.sample.where == "line 1 of rows.jsonl"
    for strategy in ("delete", "right"):
        fitted, _ = data.fit(tokenized, 80, strategy)
        assert fitted.sample.where == "line 3 of rows.jsonl"
    assert [sample.num_tokens for sample in tokenized.samples] == sorted(
        (sample.num_tokens for sample in tokenized.samples), reverse=True
    )


def test_some_sample_is_left_whenever_a_row_is(read):
    tokenized = read([{"text": "x" * length} for length in range(60, 20, -1)]).tokenized
    for limit in range(22, 62):
        fitted, _ = data.fit(tokenized, limit)
        assert fitted.sample.num_tokens <= limit


def test_a_gigabyte_without_a_line_end_is_never_held_in_memory(tmp_path):
    """In a process of its own whose memory ends long before the line does."""
    path = tmp_path / "a.jsonl"
    with path.open("wb") as stream:
        stream.write(LINE + b'{"text": "')
        stream.truncate(2**30)  # the rest of the line is NUL bytes that take no space on the disk
    program = (
        "import resource, sys; from pathlib import Path; from adaptft.data.streams import byte_lines\n"
        "resource.setrlimit(resource.RLIMIT_AS, (600 * 2**20,) * 2)\n"
        "print([number for number, _ in byte_lines(Path(sys.argv[1]))])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[1, 2]\n", done.stderr


def test_a_worker_that_is_killed_is_an_error_in_two_lines(tokenizer_with):
    import os
    import signal

    from adaptft.data.detection import detect
    from adaptft.data.tokenising import Chunk, ChunkTokens, RowTokenizer, chunks, tokenise_chunks

    class Killed(RowTokenizer):
        """As the system kills a process that takes too much memory."""

        parent = os.getpid()

        def tokens(self, chunk: Chunk) -> ChunkTokens:
            if os.getpid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().tokens(chunk)

    settings = data.DataSettings(sources=("x",))
    work = Killed(tokenizer_with("qwen2.5"), settings, [detect([GOOD], "x")], [False])
    parts = chunks(0, ((number, LINE) for number in range(1, 3000)))
    with pytest.raises(DataError, match="was killed") as error:
        list(tokenise_chunks(work, parts, 2))
    assert "--dataset_num_proc" in error.value.fix


def test_reasons_without_end_are_told_as_other_reasons(read):
    rows = [{"messages": [{"role": f"role {number}", "content": "?"}]} for number in range(80)]
    good = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    report = read([good, *rows]).report
    assert len(report.rejected) == 51
    assert report.rejected[-1].reason == "other reasons"
    assert sum(rejected.count for rejected in report.rejected) == report.num_rejected == 80
