"""Lists of messages, in OpenAI's, ShareGPT's and ms-swift's ways, as turns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from adaptft.data.conversation import BadRow, Role, ToolCall, Turn
from adaptft.data.values import as_arguments, as_content, as_list, as_text, check_texts, is_missing, parse_json

Spoken = Literal["system", "user", "assistant", "tool", "call"]

ROLES: dict[str, Spoken] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user",
    "assistant": "assistant", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant", "model": "assistant",
    "tool": "tool", "observation": "tool", "observations": "tool", "tool_response": "tool", "tool_result": "tool",
    "function": "tool", "function_response": "tool", "ipython": "tool",
    "function_call": "call", "tool_call": "call",
}  # fmt: skip
ROLE_KEYS = ("role", "from")
CONTENT_KEYS = ("content", "value")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
LOSS_KEYS = ("loss", "weight", "train", "training")
PAIR_KEYS = (("human", "assistant"), ("user", "assistant"), ("query", "response"), ("question", "answer"))


@dataclass(frozen=True, slots=True)
class Tags:
    """Names inside a message: a registration (dataset_info.json) may give its own."""

    role_keys: tuple[str, ...] = ROLE_KEYS
    content_keys: tuple[str, ...] = CONTENT_KEYS
    roles: tuple[tuple[str, Spoken], ...] = ()

    def spoken(self, role: Any) -> Spoken:
        """What a role's name means.

        Raises:
            BadRow: it is unknown.
        """
        if not isinstance(role, str):
            raise BadRow("message without a role")
        own = dict(self.roles)
        found = own.get(role) or ROLES.get(role.strip().lower())
        if found is None:
            raise BadRow(f"message with the unknown role {role[:40]!r}")
        return found


def read_messages(value: Any, tags: Tags = Tags(), *, what: str = "messages") -> list[Turn]:
    """A list of messages (or its JSON text) as turns; calls that follow each other become one turn.

    Raises:
        BadRow: not a list of messages, an unknown role, content that is not text, a broken call.
    """
    turns: list[Turn] = []
    for message in as_list(value, what):
        for turn in _read_message(message, tags):
            if turn.tool_calls and turns and _continues(turns[-1], turn):
                turns[-1] = replace(turns[-1], tool_calls=turns[-1].tool_calls + turn.tool_calls)
            else:
                turns.append(turn)
    return turns


def _continues(before: Turn, turn: Turn) -> bool:
    """True where ``turn`` is only calls and belongs to the assistant's message ``before``."""
    return before.is_answer and not turn.content and turn.reasoning is None and before.trained == turn.trained


def _read_message(message: Any, tags: Tags) -> list[Turn]:
    if not isinstance(message, dict):
        raise BadRow("message that is not an object")
    role_key = next((key for key in tags.role_keys if key in message), None)
    if role_key is None:
        return _read_exchange(message)
    spoken = tags.spoken(message[role_key])
    content = next((message[key] for key in tags.content_keys if not is_missing(message.get(key))), None)
    if spoken == "call":
        return [Turn(role="assistant", content="", tool_calls=_written_calls(content), trained=_is_trained(message))]
    if spoken == "assistant":
        return [_read_answer(message, content)]
    return [_read_other(spoken, message, content)]


def _read_other(role: Role, message: dict[str, Any], content: Any) -> Turn:
    text = as_content(content, "tool message") if role == "tool" else as_text(content, f"{role} message")
    return Turn(role=role, content=text, name=_name(message), tool_call_id=_identifier(message.get("tool_call_id")))


def _read_answer(message: dict[str, Any], content: Any) -> Turn:
    reasoning = next((message[key] for key in REASONING_KEYS if not is_missing(message.get(key))), None)
    calls = as_list(message.get("tool_calls"), "tool_calls")
    if not is_missing(message.get("function_call")):
        calls = [*calls, message["function_call"]]
    return Turn(
        role="assistant",
        content=as_text(content, "answer"),
        reasoning=as_text(reasoning, "reasoning") or None,
        tool_calls=tuple(_read_call(call) for call in calls),
        name=_name(message),
        trained=_is_trained(message),
    )


def _read_exchange(message: dict[str, Any]) -> list[Turn]:
    """ms-swift's pairs: ``{"human": ..., "assistant": ...}``."""
    for asked, answered in PAIR_KEYS:
        if asked in message and answered in message:
            return exchange(message[asked], message[answered])
    raise BadRow("message without a role")


def exchange(question: Any, answer: Any) -> list[Turn]:
    """A question and its answer; an empty answer stays in place and is not trained.

    Raises:
        BadRow: either is not text, or there is no question.
    """
    asked = as_text(question, "question")
    answered = as_text(answer, "answer")
    if not asked.strip():
        raise BadRow("exchange without a question")
    return [Turn(role="user", content=asked), Turn(role="assistant", content=answered)]


def _name(message: dict[str, Any]) -> str | None:
    name = message.get("name")
    return as_text(name, "name") if isinstance(name, str) and name else None


def _is_trained(message: dict[str, Any]) -> bool:
    values = [message[key] for key in LOSS_KEYS if not is_missing(message.get(key))]
    return all(value not in (False, 0, "false", "0") for value in values)


def _written_calls(value: Any) -> tuple[ToolCall, ...]:
    """Calls written as a message of their own: an object, a list of them, or JSON text of either."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            raise BadRow("function_call that is not JSON") from None
    calls = value if isinstance(value, list) else [value]
    if not calls:
        raise BadRow("function_call without a call")
    return tuple(_read_call(call) for call in calls)


def _read_call(call: Any) -> ToolCall:
    if isinstance(call, str):
        try:
            call = parse_json(call)
        except ValueError:
            raise BadRow("tool call that is not JSON") from None
    if not isinstance(call, dict):
        raise BadRow("tool call that is not an object")
    inner = call.get("function")
    function = inner if isinstance(inner, dict) else call
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BadRow("tool call without a name")
    arguments = function.get("arguments", function.get("parameters", function.get("input")))
    return ToolCall(name=as_text(name, "tool call"), arguments=as_arguments(arguments), id=_identifier(call.get("id")))


def _identifier(value: Any) -> str | None:
    return as_text(value, "id of a tool call") if isinstance(value, str) else None


def read_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """The tools on offer in OpenAI's form, which is what an endpoint receives; bare functions are wrapped.

    Raises:
        BadRow: not a list of functions with names.
    """
    tools = []
    for tool in as_list(value, "tools"):
        if isinstance(tool, str):
            tool = next(iter(as_list(tool, "tools")), None)
        if not isinstance(tool, dict):
            raise BadRow("tools are not a list of objects")
        check_texts(tool, "tools")
        wrapped: dict[str, Any] = tool if isinstance(tool.get("function"), dict) else {"function": tool}
        if not isinstance(wrapped["function"].get("name"), str):
            raise BadRow("tool without a name")
        tools.append(wrapped if "type" in wrapped else {"type": "function", **wrapped})
    return tuple(tools)
