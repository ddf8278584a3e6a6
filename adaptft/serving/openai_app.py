"""The endpoint's HTTP side: OpenAI's paths over the served names, its form of errors, its stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from adaptft.serving.answer_forms import Form, event
from adaptft.serving.api_errors import ApiError
from adaptft.serving.asked import Asked, read_chat, read_text
from adaptft.serving.endpoint import OWNER
from adaptft.serving.named_models import Answer, NamedModel, find
from adaptft.serving.prompts import chat_ids, text_prompts
from adaptft.serving.tool_calls import BeforeCalls, read_calls

Models = Mapping[str, NamedModel]
_STARTED = int(time.time())
_PATHS = "/v1/models, /v1/chat/completions, /v1/completions, /tokenize and /health"
_LOG = logging.getLogger(__name__)


def build_app(models: Models, api_key: str | None) -> FastAPI:
    """The application that serves ``models``; with a key, all but /health asks for it."""
    app = FastAPI(openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def list_models() -> dict[str, Any]:
        named = sorted(models, key=lambda name: models[name].adapter is None)  # what was trained comes first
        return {"object": "list", "data": [_card(name) for name in named]}

    @app.get("/v1/models/{name:path}")
    def one_model(name: str) -> dict[str, Any]:
        find(models, name)
        return _card(name)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await _json(request)
        asked = read_chat(body)
        model = find(models, asked.model)
        return await _answer(_Job(Form(is_chat=True), model, asked, [chat_ids(model.tokenizer, body)]))

    @app.post("/v1/completions")
    async def text(request: Request) -> Response:
        body = await _json(request)
        asked = read_text(body)
        model = find(models, asked.model)
        return await _answer(_Job(Form(is_chat=False), model, asked, text_prompts(model.tokenizer, body.get("prompt"))))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """vLLM's route: the token ids of a chat's prompt, or of a text."""
        body = await _json(request)
        model = find(models, str(body.get("model")))
        if "messages" in body:
            ids = chat_ids(model.tokenizer, body)
        else:
            (ids,) = text_prompts(model.tokenizer, body.get("prompt"))
        return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}

    _answer_errors(app)
    if api_key:
        app.middleware("http")(_key_check(api_key))
    return app


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": OWNER}


async def _json(request: Request) -> dict[str, Any]:
    """The body; NaN and halves of surrogate pairs are refused here, since nothing after takes them."""
    try:
        body = json.loads(await request.body(), parse_constant=_no_number)
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as cause:
        raise ApiError(f"The request's body is no JSON: {str(cause).encode(errors='replace').decode()}") from None
    if not isinstance(body, dict):
        raise ApiError("The request's body has to be a JSON object.")
    return body


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _answer_errors(app: FastAPI) -> None:
    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body(), status_code=error.status)

    async def no_path(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = f"{request.method} {request.url.path}"
        shown = ApiError(f"{what} is not served here ({error.detail}); there are {_PATHS}.", status=error.status_code)
        return JSONResponse(shown.body(), status_code=error.status_code)

    async def failed(_: Request, error: Exception) -> Response:
        return JSONResponse(_failure(error).body(), status_code=500)

    app.add_exception_handler(ApiError, refuse)
    app.add_exception_handler(HTTPException, no_path)
    app.add_exception_handler(Exception, failed)


def _failure(error: Exception) -> ApiError:
    return ApiError(f"The server failed to answer: {type(error).__name__}: {error}", status=500)


def _key_check(api_key: str) -> Callable[[Request, Callable[[Request], Awaitable[Response]]], Awaitable[Response]]:
    wanted = f"Bearer {api_key}".encode()

    async def check(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        sent = request.headers.get("authorization", "").encode("latin-1")  # as they came over the wire
        # in constant time: how long a refusal takes must not tell how much of a guess was right
        if request.url.path == "/health" or secrets.compare_digest(sent, wanted):
            return await answer(request)
        refused = ApiError(
            "The API key is missing or wrong: send Authorization: Bearer KEY.", status=401, code="invalid_api_key"
        )
        return JSONResponse(refused.body(), status_code=401)

    return check


@dataclass(frozen=True, slots=True)
class _Job:
    form: Form
    model: NamedModel
    asked: Asked
    prompts: list[list[int]]


async def _answer(job: _Job) -> Response:
    """All that can be refused is refused before the first byte is sent."""
    for prompt in job.prompts:
        job.model.check_length(prompt, job.asked)
    if job.asked.is_stream:
        return StreamingResponse(_events(job), media_type="text/event-stream")
    answers = []
    for prompt in job.prompts:
        answers.append(await asyncio.to_thread(job.model.answer, prompt, job.asked, lambda _: None, lambda: False))
    return JSONResponse(job.form.whole(job.asked, answers))


async def _events(job: _Job) -> AsyncIterator[str]:
    name, answers = job.asked.model, []
    try:
        for index, prompt in enumerate(job.prompts):
            if job.form.is_chat:
                yield job.form.piece(name, index, "", role="assistant")
            before = BeforeCalls() if job.asked.with_tools else None
            async for said in _pieces(job, prompt):
                if isinstance(said, str):
                    if piece := before.push(said) if before else said:
                        yield job.form.piece(name, index, piece)
                    continue
                answers.append(said)
                for last in _last_events(job, index, said, before):
                    yield last
    except Exception as error:  # the status is sent already: clients read the error from the stream
        _LOG.exception("An answer failed")
        yield event(_failure(error).body())
        return
    if job.asked.with_usage:
        yield job.form.total(name, answers)
    yield "data: [DONE]\n\n"


def _last_events(job: _Job, index: int, answer: Answer, before: BeforeCalls | None) -> Iterator[str]:
    """What an answer ends with: the calls that were held back, or the text that only looked like one."""
    name = job.asked.model
    reason: str = answer.finish_reason
    if before is not None:
        _, calls = read_calls(answer.text)
        if calls:
            yield job.form.calls(name, calls)
        elif held := answer.text[len(before.said) :]:
            yield job.form.piece(name, index, held)
        reason = "tool_calls" if calls else reason
    yield job.form.piece(name, index, "", end=reason)


async def _pieces(job: _Job, prompt: list[int]) -> AsyncIterator[str | Answer]:
    """The text in pieces, then the whole answer; the model stops where nobody listens any more."""
    loop, queue, has_left = asyncio.get_running_loop(), asyncio.Queue[str | Answer | Exception](), threading.Event()

    def put(item: str | Answer | Exception) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            put(job.model.answer(prompt, job.asked, put, has_left.is_set))
        except Exception as error:
            put(error)

    running = loop.run_in_executor(None, work)
    try:
        while True:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if isinstance(item, Answer):
                break
        await running
    finally:
        has_left.set()
