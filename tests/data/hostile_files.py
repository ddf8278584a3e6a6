"""Data files as a hostile or careless world writes them: rows of every dialect, of odd values, wrapped and damaged."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

COLUMNS = (
    "messages", "conversations", "instruction", "input", "output", "history", "system", "tools", "prompt",
    "completion", "query", "response", "question", "answer", "text", "label", "chosen", "rejected", "问题", "答案",
)  # fmt: skip
MESSAGE_KEYS = (
    "role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name", "reasoning_content",
    "loss", "human", "assistant",
)  # fmt: skip
ROLES = ("user", "assistant", "system", "tool", "human", "gpt", "function_call", "observation", "wizard\n\ud800")
ODD_TEXTS = (
    "", " ", "\0", "\ud800", "a\r\nb", "C:\\new\\table", '{"a": 1}', "[]", "null", "NaN", "<|im_end|>", "<think>\n",
    "</think>", "{{ x }}", "\ufeff", "\u2028", "\x1b[31m", "é" * 50, "𝒳說", "1e999", "9" * 30, '"', "[" * 60,
)  # fmt: skip

texts = st.sampled_from(ODD_TEXTS) | st.text(st.characters(codec=None), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
calls = st.fixed_dictionaries(
    {}, optional={"id": scalars, "function": st.fixed_dictionaries({}, optional={"name": texts, "arguments": scalars})}
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MESSAGE_KEYS) | texts, inner, max_size=3)
    ),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES), "content": texts | values}, optional={"tool_calls": st.lists(calls, max_size=2)}
) | st.fixed_dictionaries({"from": st.sampled_from(ROLES), "value": texts | values})
cells = texts | values | st.lists(messages, max_size=4)
rows = st.dictionaries(st.sampled_from(COLUMNS) | texts, cells, max_size=5)
good_rows = st.just({"instruction": "Say.", "output": "Said."})


@st.composite
def files(draw: st.DrawFn, suffix: str) -> bytes:
    """The content of a file whose name ends in ``suffix``."""
    form, _, compression = suffix.lstrip(".").partition(".")
    if draw(st.integers(0, 9)) == 0:
        content = draw(st.binary(max_size=200))
    else:
        content = WRITERS[form](draw, draw(st.lists(good_rows | rows, max_size=5)))
    content = draw(damaged(content)) if draw(st.booleans()) else content
    content = COMPRESS[compression](content)
    return draw(damaged(content)) if compression and draw(st.integers(0, 3)) == 0 else content


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` cut, with some bytes changed, or with something put into it."""
    place = draw(st.integers(0, max(0, len(content) - 1)))
    kind = draw(st.sampled_from(("cut", "change", "insert")))
    if kind == "cut":
        return content[:place]
    other = draw(st.sampled_from((b"\0", b"\xff", b'"', b"\n", b"\r", b"\xef\xbb\xbf")) | st.binary(max_size=3))
    return content[:place] + other + content[place + (len(other) if kind == "change" else 0) :]


def encoded(draw: st.DrawFn, text: str) -> bytes:
    encoding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030", "latin-1")))
    return text.encode(encoding, errors="surrogatepass" if encoding == "utf-8" else "replace")


def json_lines(draw: st.DrawFn, content: list[Any]) -> bytes:
    ascii_only, end = draw(st.booleans()), draw(st.sampled_from(("\n", "\r\n", "\n\n", "\r")))
    return encoded(draw, "".join(json.dumps(row, ensure_ascii=ascii_only) + end for row in content))


def json_list(draw: st.DrawFn, content: list[Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from((None, 1))))
    twice = text.replace('"output"', '"output": 5, "output"') if draw(st.booleans()) else text
    return encoded(draw, twice)


def separated(draw: st.DrawFn, content: list[dict[str, Any]]) -> bytes:
    names = list(dict.fromkeys(name for row in content for name in row))
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=draw(st.sampled_from((",", ";", "\t", "|"))), escapechar="\\")
    writer.writerows([names, *([row.get(name) for name in names] for row in content)])
    return encoded(draw, stream.getvalue())


def text(draw: st.DrawFn, content: list[Any]) -> bytes:
    end = draw(st.sampled_from(("\n", "\r\n", "\n\n")))
    return encoded(draw, end.join(map(str, draw(st.lists(texts, max_size=8)) + content)))


def arrow(draw: st.DrawFn, content: list[dict[str, Any]]) -> bytes:
    rows, sink = table(content), pa.BufferOutputStream()
    new = draw(st.sampled_from((pa.ipc.new_stream, pa.ipc.new_file)))
    with new(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def parquet(draw: st.DrawFn, content: list[dict[str, Any]]) -> bytes:
    sink, compression = io.BytesIO(), draw(st.sampled_from(("none", "snappy", "zstd")))
    try:
        pq.write_table(table(content), sink, compression=compression)
    except pa.ArrowNotImplementedError:  # an object without keys
        pq.write_table(pa.table({"text": [json.dumps(row) for row in content]}), sink, compression=compression)
    return sink.getvalue()


def table(content: list[dict[str, Any]]) -> pa.Table:
    """Arrow's own types where the rows agree on them; their JSON text where they do not."""
    names = list(dict.fromkeys(name for row in content for name in row))
    columns = [column([row.get(name) for row in content]) for name in names]
    return pa.table(columns, names=[name.encode(errors="replace").decode() for name in names])


def column(cells: list[Any]) -> pa.Array:
    try:
        made = pa.array(cells)
        return made if made.type != pa.null() else made.cast(pa.string())
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([json.dumps(cell) for cell in cells])


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


WRITERS = {
    "jsonl": json_lines, "json": json_list, "csv": separated, "tsv": separated, "txt": text, "arrow": arrow,
    "parquet": parquet,
}  # fmt: skip
COMPRESS = {"": bytes, "gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}
SUFFIXES = (
    ".jsonl", ".json", ".csv", ".tsv", ".txt", ".arrow", ".parquet", ".jsonl.gz", ".json.zst", ".csv.bz2",
)  # fmt: skip
