"""Calls of tools in what a model says, whole and streamed, by the openai client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from local_servers import in_a_thread

openai = pytest.importorskip("openai", reason="asking an endpoint needs the extra [serve]")
pytest.importorskip("uvicorn", reason="the transformers engine needs the extra [serve]")

from adaptft.models import load_tokenizer  # noqa: E402
from adaptft.serving.named_models import NamedModel  # noqa: E402
from adaptft.serving.openai_app import build_app  # noqa: E402
from adaptft.serving.tool_calls import read_calls  # noqa: E402

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "at": {"h": 1}}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
LLAMA = '{"name": "weather", "parameters": {"city": "Köln"}}'


@pytest.mark.parametrize(
    ("text", "before", "names"),
    [
        (ONE, "", ["weather"]),
        ("Let me see.\n" + TWO, "Let me see.", ["weather", "time"]),
        (ONE.removesuffix("</tool_call>"), "", ["weather"]),  # a stop token may be the closing tag
        (LLAMA, "", ["weather"]),
        ("Sunny.", "Sunny.", []),
        ('{"city": "Rome"}', '{"city": "Rome"}', []),
        ("<tool_call>{broken</tool_call>", "<tool_call>{broken</tool_call>", []),
        (ONE + "<tool_call>{1}</tool_call>", ONE + "<tool_call>{1}</tool_call>", []),
    ],
)
def test_calls_are_read_and_everything_else_stays_text(text: str, before: str, names: list[str]) -> None:
    said, calls = read_calls(text)
    assert (said, [call["function"]["name"] for call in calls]) == (before, names)
    assert len({call["id"] for call in calls}) == len(calls)


class Parrot:
    """A language model that always says the same: what transformers' generate does with it is not tested here."""

    device = torch.device("cpu")
    config = SimpleNamespace(vocab_size=10**6)

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def generate(self, *, input_ids: torch.Tensor, streamer: Any, **_: Any) -> None:
        streamer.put(input_ids)
        for token in self.ids:
            streamer.put(torch.tensor([token]))
        streamer.end()


@pytest.fixture(scope="module")
def client(tiny_qwen2: Path) -> Iterator[Any]:
    tokenizer, lock = load_tokenizer(tiny_qwen2), threading.Lock()
    said = {"one": ONE, "two": "Wait. " + TWO, "llama": LLAMA, "text": "Plain < text.", "json": '{"a": 1}'}
    models = {
        name: NamedModel(
            model=Parrot(tokenizer.encode(text)), tokenizer=tokenizer, adapter=None, lock=lock, max_model_len=2048,
            generation_config=SimpleNamespace(
                max_new_tokens=None, pad_token_id=0, do_sample=False, eos_token_id=None, update=lambda **_: None
            ),
        )
        for name, text in said.items()
    }  # fmt: skip
    with in_a_thread(build_app(models, None)) as url:
        yield openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)


def ask(client: Any, model: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Weather?"}], **{"tools": [TOOL]} | options
    )


@pytest.mark.parametrize(
    ("model", "content", "names"),
    [
        ("one", None, ["weather"]),
        ("two", "Wait.", ["weather", "time"]),
        ("llama", None, ["weather"]),
        ("text", "Plain < text.", []),
        ("json", '{"a": 1}', []),
    ],
)
def test_a_stream_brings_the_same_calls_as_a_whole_answer(client: Any, model: str, content: str | None, names) -> None:
    (choice,) = ask(client, model).choices
    calls = choice.message.tool_calls or []
    assert (choice.message.content, [call.function.name for call in calls]) == (content, names)
    assert choice.finish_reason == ("tool_calls" if names else "length")
    chunks = [chunk.choices[0] for chunk in ask(client, model, stream=True)]
    streamed = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert "".join(chunk.delta.content or "" for chunk in chunks).strip() == (content or "")
    assert [call.function.name for call in streamed] == names
    assert [call.index for call in streamed] == list(range(len(names)))
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]
    assert chunks[-1].finish_reason == choice.finish_reason
    assert not calls or json.loads(calls[0].function.arguments)["city"] == "Köln"


def test_without_tools_a_call_is_text(client: Any) -> None:
    for options in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
        (choice,) = ask(client, "one", **options).choices
        assert (choice.message.content, choice.message.tool_calls) == (ONE, None)
