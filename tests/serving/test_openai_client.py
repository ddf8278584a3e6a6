"""The transformers engine through the real openai client: stops, refusals and lists of prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_servers import in_a_thread

openai = pytest.importorskip("openai", reason="asking an endpoint needs the extra [serve]")
pytest.importorskip("uvicorn", reason="the transformers engine needs the extra [serve]")

KEY, LONGEST = "s3cret", 512
SAMPLED = {"temperature": 1, "seed": 5}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def url(tiny_qwen2: Path, tiny_llama: Path) -> Iterator[str]:
    """Two models of different templates under two names: tiny-qwen2's renders tools, tiny-llama's does not."""
    from adaptft.serving.openai_app import build_app
    from adaptft.serving.transformers_server import load_models, parse_options

    models = {}
    for name, folder in {"qwen": tiny_qwen2, "llama": tiny_llama}.items():
        words = ["--model", str(folder), "--served-model-name", name, "--device", "cpu", "--dtype", "float32"]
        models |= load_models(parse_options([*words, "--max-model-len", str(LONGEST)]))
    with in_a_thread(build_app(models, KEY)) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=60)


def chat(client: Any, **options: Any) -> Any:
    given = {"model": "qwen", "messages": QUESTION, "max_tokens": 20, "temperature": 0} | options
    return client.chat.completions.create(**given)


def streamed(chunks: Any) -> tuple[str, list[str]]:
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join((c.delta.content if hasattr(c, "delta") else c.text) or "" for c in choices)
    return text, [c.finish_reason for c in choices if c.finish_reason]


def text_of(client: Any, **options: Any) -> Any:
    given = {"model": "qwen", "prompt": "The capital", "max_tokens": 12, "temperature": 0} | options
    return client.completions.create(**given)


@pytest.mark.parametrize("model", ["qwen", "llama"])
def test_a_stop_text_is_cut_off_and_a_stream_is_the_same_text(client: Any, model: str) -> None:
    """Sampled with a seed: random weights say the same token again and again otherwise."""
    whole = chat(client, model=model, **SAMPLED).choices[0]
    assert streamed(chat(client, model=model, **SAMPLED, stream=True)) == (whole.message.content, ["length"])
    length = len(whole.message.content)
    assert length > 5
    for start, end in ((0, 3), (length // 3, length // 2), (length - 1, length)):
        stop = whole.message.content[start:end]
        expected = whole.message.content.partition(stop)[0]
        answer = chat(client, model=model, **SAMPLED, stop=["never said", stop])
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens <= 20
        assert streamed(chat(client, model=model, **SAMPLED, stop=stop, stream=True)) == (expected, ["stop"])


def test_text_completions_cut_at_a_stop_text_too(client: Any) -> None:
    whole = text_of(client, **SAMPLED).choices[0].text
    stop = whole[2:4]
    assert text_of(client, **SAMPLED, stop=stop).choices[0].text == whole.partition(stop)[0]
    assert streamed(text_of(client, **SAMPLED, stop=stop, stream=True))[0] == whole.partition(stop)[0]


def test_each_of_several_prompts_is_answered(client: Any) -> None:
    prompts = ["The capital", "Once upon a time"]
    alone = [text_of(client, model="llama", prompt=prompt) for prompt in prompts]
    together = text_of(client, model="llama", prompt=prompts)
    assert [choice.text for choice in together.choices] == [one.choices[0].text for one in alone]
    assert [choice.index for choice in together.choices] == [0, 1]
    assert together.usage.total_tokens == sum(one.usage.total_tokens for one in alone)
    pieces = {0: "", 1: ""}
    for chunk in text_of(client, model="llama", prompt=prompts, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert list(pieces.values()) == [choice.text for choice in together.choices]
    assert text_of(client, prompt=[1, 2, 3]).usage.prompt_tokens == 3


PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]
LONG = [{"role": "user", "content": "word " * 600}]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "at least one message"),
    "max_tokens 0": ({"max_tokens": 0}, "max_tokens has to be a whole number of at least 1; it is 0"),
    "max_tokens negative": ({"max_tokens": -3}, "it is -3"),
    "max_completion_tokens 0": ({"max_completion_tokens": 0}, "max_completion_tokens has to be"),
    "no model": ({"model": ""}, "names no model"),
    "a bogus role": ({"messages": [{"role": "wizard", "content": "x"}]}, "the role 'wizard'"),
    "no content": ({"messages": [{"role": "user"}]}, "has no content"),
    "several answers": ({"n": 2}, "n=2 is not supported by the transformers engine"),
    "logprobs": ({"logprobs": True}, "logprobs=True is not supported"),
    "top_logprobs": ({"top_logprobs": 3}, "top_logprobs=3 is not supported"),
    "pictures": ({"messages": PICTURE}, "type image_url (this engine serves text only) is not supported"),
    "JSON": ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
    "tools without a template": ({"model": "llama", "tools": [TOOL]}, "chat template renders none"),
    "a forced tool": ({"tools": [TOOL], "tool_choice": "required"}, "forces a call is not supported"),
    "tools of no form": ({"tools": ["weather"]}, "tools has to be a list"),
    "broken tool calls": ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "not of the form"),
    "temperature": ({"temperature": -1}, "temperature has to be a number from 0 to 2"),
    "top_p": ({"top_p": 0}, "top_p has to be a number above 0"),
    "stop": ({"stop": [""]}, "none of them empty"),
    "a template of one's own": ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, "without a template"),
    "logit_bias of words": ({"logit_bias": {"a": 1}}, "numbers from -100 to 100"),
    "logit_bias": ({"logit_bias": {"99999": 1}}, "token 99999"),
    "no such option": ({"extra_body": {"guided_json": {}}}, "no option guided_json"),
    "a long prompt": ({"messages": LONG}, f"takes {LONGEST} tokens at most"),
    "a long answer": ({"max_tokens": 5000}, f"max_tokens asks for 5000: a request takes {LONGEST} tokens at most"),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_done_is_refused_in_words(
    client: Any, options: dict[str, Any], words: str, is_stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        chat(client, stream=is_stream, **options)
    assert set(refusal.value.body) == {"message", "type", "param", "code"}
    assert words in refusal.value.body["message"]
    assert words in str(refusal.value)


@pytest.mark.parametrize("prompt", [[], "", [["x"]], {"a": 1}, [1, 10**9]])
def test_a_prompt_that_cannot_be_meant_is_refused(client: Any, prompt: object) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt"):
        text_of(client, prompt=prompt)


def test_other_refusals_have_their_status_and_the_same_form(client: Any, url: str) -> None:
    with pytest.raises(openai.NotFoundError, match="No model nobody is served here, only: qwen, llama"):
        chat(client, model="nobody")
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings is not served here"):
        client.embeddings.create(model="qwen", input="x")
    with pytest.raises(openai.AuthenticationError, match="API key is missing or wrong"):
        chat(openai.OpenAI(base_url=url, api_key="wrong", max_retries=0))
    with pytest.raises(openai.BadRequestError, match="no JSON"):
        client.post("/completions", cast_to=object, content=b"{")
    for body in (
        b'{"model": "\\ud800", "prompt": "x"}',
        b'{"model": "qwen", "prompt": "x", "temperature": NaN}',
        b"[" * 9999,
    ):
        with pytest.raises(openai.BadRequestError, match="no JSON"):
            client.post("/completions", cast_to=object, content=body)
    with pytest.raises(openai.NotFoundError, match="No model nobody"):
        client.models.retrieve("nobody")
    assert client.models.retrieve("qwen").id == "qwen"


def test_tools_are_part_of_the_prompt_where_the_template_renders_them(client: Any) -> None:
    with_tools = chat(client, tools=[TOOL], max_tokens=1)
    assert with_tools.usage.prompt_tokens > chat(client, max_tokens=1).usage.prompt_tokens
    without = chat(client, tools=[TOOL], tool_choice="none", max_tokens=1)
    assert without.usage == chat(client, max_tokens=1).usage


def test_harmless_defaults_of_clients_are_taken(client: Any) -> None:
    defaults = {"n": 1, "logprobs": False, "response_format": {"type": "text"}, "user": "me", "tools": []}
    answer = chat(client, **defaults, frequency_penalty=0, presence_penalty=0, seed=1, top_p=0.5)
    assert answer.choices[0].message.content == chat(client).choices[0].message.content


def test_a_temperature_of_almost_nothing_is_greedy(client: Any) -> None:
    assert text_of(client, temperature=1e-40).choices == text_of(client).choices


def test_penalties_and_biases_change_the_answer(client: Any) -> None:
    plain = chat(client, model="llama").choices[0].message.content
    assert chat(client, model="llama", presence_penalty=2, frequency_penalty=2).choices[0].message.content != plain
    assert chat(client, model="llama", logit_bias={"65": 100}, max_tokens=3).choices[0].message.content != plain[:3]


def test_the_usage_of_a_stream_comes_where_it_is_asked_for(client: Any) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == chat(client).usage
    assert not any(chunk.usage for chunk in chunks[:-1])
