"""An answer as OpenAI's JSON: whole, or in pieces as a stream of events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from adaptft.serving.asked import Asked
from adaptft.serving.named_models import Answer
from adaptft.serving.tool_calls import Call, read_calls


class Form:
    """JSON of one answer, whole or in pieces, of a chat or of a text completion."""

    def __init__(self, *, is_chat: bool) -> None:
        self.is_chat = is_chat
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def whole(self, asked: Asked, answers: list[Answer]) -> dict[str, Any]:
        """The one answer to a request without stream; vLLM's ``return_token_ids`` adds the tokens."""
        choices = [
            {"index": number, "logprobs": None, **self._said(asked, answer)}
            | ({"token_ids": answer.ids} if asked.with_token_ids else {})
            for number, answer in enumerate(answers)
        ]
        name = "chat.completion" if self.is_chat else "text_completion"
        return self._frame(name, asked.model, choices) | {"usage": usage(answers)}

    def piece(self, model: str, index: int, text: str, *, role: str | None = None, end: str | None = None) -> str:
        """An event with a piece of a choice."""
        delta = ({"role": role} if role else {}) | ({"content": text} if text or role else {})
        said: dict[str, Any] = {"delta": delta} if self.is_chat else {"text": text}
        return event(self._chunk(model, [{"index": index, "finish_reason": end, "logprobs": None, **said}]))

    def calls(self, model: str, calls: Sequence[Call]) -> str:
        """The event with the calls of tools that a chat's answer ends with."""
        delta = {"tool_calls": [{"index": number, **call} for number, call in enumerate(calls)]}
        return event(self._chunk(model, [{"index": 0, "finish_reason": None, "logprobs": None, "delta": delta}]))

    def total(self, model: str, answers: list[Answer]) -> str:
        """The event with the usage and no choice."""
        return event(self._chunk(model, []) | {"usage": usage(answers)})

    def _chunk(self, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._frame("chat.completion.chunk" if self.is_chat else "text_completion", model, choices)

    def _frame(self, name: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": name, "created": self._created, "model": model, "choices": choices}

    def _said(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        if not self.is_chat:
            return {"finish_reason": answer.finish_reason, "text": answer.text}
        text, calls = read_calls(answer.text) if asked.with_tools else (answer.text, [])
        if not calls:
            return {"finish_reason": answer.finish_reason, "message": {"role": "assistant", "content": text}}
        return {
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": text or None, "tool_calls": calls},
        }


def usage(answers: list[Answer]) -> dict[str, int]:
    """Tokens of all prompts and answers of a request."""
    prompt, said = sum(a.num_prompt_tokens for a in answers), sum(a.num_tokens for a in answers)
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def event(value: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
