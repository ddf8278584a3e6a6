"""Messages, tools and texts of a request to token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adaptft.serving.api_errors import ApiError, unsupported

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_PROBE = [{"role": "user", "content": "x"}]


def chat_ids(tokenizer: Any, body: Mapping[str, Any]) -> list[int]:
    """The messages of ``body`` as the model's chat template renders them, with the tools where it renders these.

    Raises:
        ApiError: messages that cannot be meant, or that the template or this engine does not take.
    """
    if not tokenizer.chat_template:
        raise ApiError("This model has no chat template; it continues texts: use /v1/completions.", param="messages")
    messages = _messages(body.get("messages"))
    extra = body.get("chat_template_kwargs") or {}
    if not isinstance(extra, dict) or "chat_template" in extra:
        raise ApiError("chat_template_kwargs has to be an object, without a template.", param="chat_template_kwargs")
    tools = _tools(tokenizer, body)
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False, **extra)
    except Exception as cause:  # templates are programs: any error in them comes of what they were given
        raise ApiError(f"The model's chat template does not take these messages: {cause}", param="messages") from cause
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def text_prompts(tokenizer: Any, prompt: Any) -> list[list[int]]:
    """A text, token ids, or a list of either, as token ids.

    Raises:
        ApiError: it is none of these, or empty.
    """
    several = prompt if isinstance(prompt, list) and not _is_ids(prompt) else [prompt]
    if not several:
        raise ApiError("prompt is an empty list.", param="prompt")
    prompts = []
    for one in several:
        if isinstance(one, str):
            ids = list(tokenizer(one)["input_ids"])
        elif _is_ids(one) and all(0 <= i < len(tokenizer) for i in one):
            ids = list(one)
        else:
            raise ApiError(
                "prompt has to be a text, a list of token ids of the model, or a list of these.", param="prompt"
            )
        if not ids:
            raise ApiError("prompt is empty: there is nothing to continue.", param="prompt")
        prompts.append(ids)
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _messages(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise ApiError("messages has to be a list with at least one message.", param="messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(message: object, place: str) -> dict[str, Any]:
    if not isinstance(message, dict) or message.get("role") not in tuple(_ROLES):
        role = message.get("role") if isinstance(message, dict) else message
        raise ApiError(f"{place} has the role {role!r}; roles are {', '.join(_ROLES)}.", param=f"{place}.role")
    calls = message.get("tool_calls")
    read: dict[str, Any] = {"role": _ROLES[message["role"]], "content": _content(message, place, needed=not calls)}
    if calls:
        read["tool_calls"] = _tool_calls(calls, place)
    for name in ("tool_call_id", "name", "reasoning_content"):
        if message.get(name) is not None:
            read[name] = message[name]
    return read


def _content(message: dict[str, Any], place: str, *, needed: bool) -> str:
    content = message.get("content")
    if content is None and not needed:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{place} has no content: a text, or a list of parts.", param=f"{place}.content")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise unsupported(f"A message part of type {kind} (this engine serves text only)", f"{place}.content")
        if not isinstance(part.get("text"), str):
            raise ApiError(f"A part of {place} has no text.", param=f"{place}.content")
        texts.append(part["text"])
    return "\n".join(texts)


def _tool_calls(calls: object, place: str) -> list[dict[str, Any]]:
    """Calls with their arguments as objects: templates go through them."""
    try:
        read = []
        for call in calls:  # type: ignore[attr-defined]
            function = dict(call["function"])
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"] or "{}")
            read.append({"type": "function", **call, "function": function})
        return read
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ApiError(
            f'{place} has tool_calls that are not of the form {{"function": {{"name": ..., "arguments": "JSON"}}}}.',
            param=f"{place}.tool_calls",
        ) from None


def _tools(tokenizer: Any, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise unsupported("A tool_choice that forces a call", "tool_choice")
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ApiError('tools has to be a list of {"type": "function", "function": {...}}.', param="tools")
    if choice == "none":
        return None
    if not _renders(tokenizer, tools):
        raise ApiError("tools cannot be given: this model's chat template renders none.", param="tools")
    return tools


def _renders(tokenizer: Any, tools: list[dict[str, Any]]) -> bool:
    try:
        with_tools, without = (tokenizer.apply_chat_template(_PROBE, tools=t, tokenize=False) for t in (tools, None))
    except Exception as cause:  # as in chat_ids
        raise ApiError(f"The model's chat template does not take these tools: {cause}", param="tools") from cause
    return bool(with_tools != without)
