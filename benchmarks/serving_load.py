"""The client of serving.py: asks an endpoint through the openai package, so many requests at a time; prints one JSON.

Runs under any Python that has openai (vLLM's own environment does); nothing of adaptft is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from statistics import median
from typing import Any

import openai

WORDS = "The quick brown fox jumps over the lazy dog while seven engineers measure how fast the answers come. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("names", nargs="+", help="served names; requests take turns")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--key", default="none")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second over all requests, and the medians of one request."""
    client = openai.AsyncOpenAI(base_url=options.url, api_key=options.key, max_retries=0, timeout=600)
    for name in options.names:  # what is compiled at the first request is not measured
        await ask(client, name, 0, 2, options.prompt_words)
    free = asyncio.Semaphore(options.concurrency)

    async def one(number: int) -> dict[str, float]:
        async with free:
            name = options.names[number % len(options.names)]
            return await ask(client, name, number, options.tokens, options.prompt_words)

    begin = time.perf_counter()
    answers = await asyncio.gather(*map(one, range(options.requests)))
    seconds = time.perf_counter() - begin
    said = sum(answer["tokens"] for answer in answers)
    return {
        "concurrency": options.concurrency,
        "requests": options.requests,
        "prompt_tokens": median(answer["prompt_tokens"] for answer in answers),
        "answer_tokens": said,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(said / seconds, 1),
        "median_first_token_seconds": round(median(answer["first"] for answer in answers), 4),
        "median_request_seconds": round(median(answer["all"] for answer in answers), 4),
    }


async def ask(client: openai.AsyncOpenAI, name: str, number: int, tokens: int, words: int) -> dict[str, float]:
    """One streamed chat of exactly ``tokens`` tokens; the prompt's start differs, so that no cache answers."""
    text = f"{number}. {(WORDS * words)[: 6 * words]} Go on."
    begin = time.perf_counter()
    first = None
    usage: Any = None
    stream = await client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": text}], max_tokens=tokens, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
    )  # fmt: skip
    async for chunk in stream:
        if chunk.choices and first is None and chunk.choices[0].delta.content:
            first = time.perf_counter() - begin
        usage = chunk.usage or usage
    total = time.perf_counter() - begin
    return {"first": first or total, "all": total, "tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens}  # fmt: skip


if __name__ == "__main__":
    main()
