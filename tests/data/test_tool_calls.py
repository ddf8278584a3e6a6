"""Tool calls in every form: null content, arguments as object, text, nothing; parallel calls; other dialects."""

from __future__ import annotations

import json

import pytest

from adaptft.errors import DataError

TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_stock", "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "server_time", "parameters": {"type": "object", "properties": {}}}},
]
CALL = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def row(answer: dict, result: object = "14:05", final: object = "It is 14:05.") -> dict:
    return {
        "tools": TOOLS,
        "messages": [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", **answer},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": final},
        ],
    }


def call(arguments: object, name: str = "server_time", **more: object) -> dict:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize("template", ["qwen2.5", "qwen3"])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}], ids=["absent", "null", "empty"])
@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"sku": "K-17"}', '{"sku": "K-17"}'),
        ({"sku": "K-17"}, '{"sku": "K-17"}'),
        ("{}", "{}"),
        ("", "{}"),
        ("  ", "{}"),
        (None, "{}"),
        ({}, "{}"),
        (json.dumps('{"sku": "K-17"}'), '{"sku": "K-17"}'),
        ('{"n": null}', '{"n": null}'),
    ],
)
def test_call_reads_as_an_object_and_is_trained_with_its_end_of_turn(read, template, content, arguments, written):
    rows = read([row({**content, "tool_calls": [call(arguments)]})], template)
    assert rows.trained()[0] == CALL.format("server_time", written) + "<|im_end|>"
    assert rows.trained()[1].removeprefix("<think>\n\n</think>\n\n") == "It is 14:05.<|im_end|>"
    assert len(rows.trained()) == 2, "the result of the tool is not trained"
    assert "None" not in rows.texts()[0]


@pytest.mark.parametrize("template", ["qwen2.5", "qwen3"])
@pytest.mark.parametrize("no_calls", [None, []])
def test_no_calls_may_be_null_or_an_empty_list(read, template, no_calls):
    rows = read([row({"content": "Wait.", "tool_calls": no_calls})], template)
    assert rows.trained()[0] == "Wait.<|im_end|>"
    assert "null" not in rows.texts()[0]


@pytest.mark.parametrize("template", ["qwen2.5", "qwen3"])
def test_tool_message_that_no_call_precedes_stays_and_is_untrained(read, template):
    rows = read([row({"content": "I will."}, result="ALERT: one left", final="Reorder.")], template)
    assert "<tool_response>\nALERT: one left\n</tool_response>" in rows.texts()[0]
    assert not any("ALERT" in text for text in rows.trained())


def test_assistant_without_content_and_call_is_an_empty_answer_with_its_line(read):
    good = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
    empty = {"messages": [{"role": "user", "content": "Thanks!"}, {"role": "assistant", "content": None}]}
    assert read([good, empty]).rejected() == {"empty answer": (2,)}


def test_parallel_calls_are_one_turn_however_they_are_written(read):
    both = [call("{}"), call('{"sku": "A"}', "get_stock")]
    apart = row({"content": None, "tool_calls": both[:1]})
    apart["messages"].insert(2, {"role": "assistant", "content": None, "tool_calls": both[1:]})
    share = [
        {"from": "human", "value": "What time is it?"},
        {
            "from": "function_call",
            "value": '[{"name": "server_time", "arguments": {}}, {"name": "get_stock", "arguments": {"sku": "A"}}]',
        },
        {"from": "observation", "value": "14:05"},
        {"from": "gpt", "value": "It is 14:05."},
    ]
    swift = [
        {"role": "user", "content": "What time is it?"},
        {"role": "tool_call", "content": '{"name": "server_time", "arguments": {}}'},
        {"role": "tool_call", "content": '{"name": "get_stock", "arguments": {"sku": "A"}}'},
        {"role": "tool_response", "content": "14:05"},
        {"role": "assistant", "content": "It is 14:05."},
    ]
    sets = [
        [row({"content": None, "tool_calls": both})],
        [apart],
        [{"conversations": share, "tools": json.dumps([tool["function"] for tool in TOOLS])}],
        [{"messages": swift, "tools": TOOLS}],
    ]
    texts = [read(rows).texts()[0] for rows in sets]
    assert texts[1:] == texts[:1] * 3
    assert read(sets[0]).trained()[0].count("<tool_call>") == 2


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"tool_calls": [call("{broken")]}, "tool call with arguments that are not JSON"),
        ({"tool_calls": [call("[1]")]}, "tool call with arguments that are not an object"),
        ({"tool_calls": [call(5)]}, "tool call with arguments that are not an object"),
        ({"tool_calls": [call("[" * 100_000)]}, "tool call with arguments that are not JSON"),
        ({"tool_calls": [call({"x": "\ud83d"})]}, "tool call has half of a surrogate pair (a cut emoji)"),
        ({"tool_calls": [call("{}", name=None)]}, "tool call without a name"),
        ({"tool_calls": "soon"}, "tool_calls is text, not a list"),
        ({"tool_calls": [7]}, "tool call that is not an object"),
    ],
)
def test_calls_that_cannot_be_meant_reject_the_row_with_the_reason(read, answer, reason):
    good = row({"content": "Wait."})
    assert read([good, row(answer)]).rejected() == {reason: (2,)}


@pytest.mark.parametrize("value", ["call me", "", "[]"])
def test_sharegpt_function_call_that_is_no_call_rejects_the_row(read, value):
    turns = [{"from": "human", "value": "?"}, {"from": "function_call", "value": value}]
    with pytest.raises(DataError, match="function_call"):
        read([{"conversations": turns}])


def test_openai_s_old_function_call_is_read(read):
    rows = read([row({"content": None, "function_call": {"name": "server_time", "arguments": "{}"}})])
    assert rows.trained()[0] == CALL.format("server_time", "{}") + "<|im_end|>"


def test_results_that_are_objects_become_json(read):
    assert (
        '<tool_response>\n{"left": 4, "name": "ü"}\n'
        in read([row({"content": "."}, {"left": 4, "name": "ü"})]).texts()[0]
    )


def test_template_that_prints_arguments_as_they_come_gets_json_text(read):
    rows = read([row({"tool_calls": [call({"sku": "K-17"})]})], "prints_arguments")
    assert rows.trained()[0] == '[CALL]server_time {"sku": "K-17"}<|im_end|>'


def test_template_without_calls_rejects_the_row_instead_of_dropping_the_call(read):
    with pytest.raises(DataError, match="tool calls, which the model's chat template does not show: 1"):
        read([row({"tool_calls": [call("{}")]})], "no_generation_prompt")


def test_tools_that_the_template_does_not_show_are_warned_about(read):
    plain = {"tools": TOOLS, "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
    assert any("no place for tools" in warning for warning in read([plain], "no_generation_prompt").report.warnings)


def test_nulls_that_parquet_fills_in_are_not_trained(read, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [row({"tool_calls": [call({"sku": "K-17"}, "get_stock")]}), row({"tool_calls": [call({"zone": "utc"})]})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    found = read(tmp_path / "rows.parquet")
    assert found.trained(0)[0] == CALL.format("get_stock", '{"sku": "K-17"}') + "<|im_end|>"
    assert "null" not in "".join(found.texts())


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ([{"name": "f", "description": "\ud83d"}], "tools has half of a surrogate pair (a cut emoji)"),
        ("not JSON", "tools is text, not a list"),
        ([5], "tools are not a list of objects"),
        ([{"description": "?"}], "tool without a name"),
    ],
)
def test_tools_that_cannot_be_meant_reject_the_row(read, tools, reason):
    assert read([row({"content": "."}), {**row({"content": "."}), "tools": tools}]).rejected() == {reason: (2,)}


@pytest.mark.parametrize("tools", [None, "", "[]", []])
def test_no_tools_are_no_tools(read, tools):
    assert "# Tools" not in read([{**row({"content": "."}), "tools": tools}]).texts()[0]
