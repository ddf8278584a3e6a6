"""The model's own chat template: what it can show, found out by rendering and never by reading its source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from adaptft.data.conversation import BadRow, Conversation, Turn
from adaptft.errors import DataError

Message = dict[str, Any]

_PROBE = "qzprobe7"
_TOOL = {"type": "function", "function": {"name": _PROBE, "description": "-", "parameters": {"type": "object"}}}
_OPENS = re.compile(r"(?P<tag>[<\[]\|?(?P<name>[\w:]*(?:think|reason|thought)[\w:]*)\|?[>\]])\s*\Z", re.IGNORECASE)
# Words of tags whose closing form is not the opening one with a slash.
_CLOSINGS = {"<|START_THINKING|>": "<|END_THINKING|>"}

SYSTEM_MERGED = "the chat template has no system role; the system prompt stands before the first question"
TOOLS_UNSEEN = "the chat template has no place for tools; the model does not see which are on offer"


@dataclass(frozen=True, slots=True)
class Thinking:
    """Tags around reasoning. ``opened`` is how a generation prompt ends that opens it itself, else empty."""

    start: str = "<think>"
    end: str = "</think>"
    opened: str = ""


class ChatTemplate:
    """Renders turns as serving will: through the tokenizer's ``apply_chat_template``, in its sandbox."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise DataError(
                "The rows are conversations, and the model has no chat template to write them with.",
                fix='Take an instruct model, put chat_template.jinja into its folder, or use rows of {"text": ...}.',
            )
        self.tokenizer = tokenizer

    def render(self, messages: list[Message], tools: list[Message] | None = None, *, prompt: bool = False) -> str:
        """The text of ``messages``; ``prompt`` adds what serving adds before the model answers.

        Raises:
            BadRow: the template refuses them; its own words are in the reason.
        """
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=prompt, tokenize=False
            )
        except Exception as cause:  # a template is a program of other people: it may raise anything
            words = " ".join((str(cause) or type(cause).__name__).split())[:100]
            raise BadRow(f"refused by the chat template ({words})") from cause
        return str(text)

    def messages(self, conversation: Conversation) -> tuple[list[Message], list[str]]:
        """The conversation as the template's messages, and notes on what had to be changed.

        Raises:
            BadRow: it calls tools, and the template would drop the calls or their results without a word.
        """
        turns, notes = conversation.turns, []
        if any(turn.tool_calls for turn in turns) and self.call_arguments is None:
            raise BadRow("tool calls, which the model's chat template does not show")
        if any(turn.role == "tool" for turn in turns) and not self.shows_tool_results:
            raise BadRow("tool results, which the model's chat template does not show")
        if conversation.tools and not self.shows_tools:
            notes.append(TOOLS_UNSEEN)
        messages = [self._message(turn) for turn in turns]
        if turns[0].role == "system" and not self.shows_system:
            messages = _merge_system(messages)
            notes.append(SYSTEM_MERGED)
        return messages, notes

    def _message(self, turn: Turn) -> Message:
        content = turn.content
        message: Message = {"role": turn.role, "content": content}
        if turn.reasoning and self.shows_reasoning:
            message["reasoning_content"] = turn.reasoning
        elif turn.reasoning:
            tags = self.thinking
            message["content"] = f"{tags.start}\n{turn.reasoning.strip()}\n{tags.end}\n\n{content}"
        if turn.tool_calls:
            as_text = self.call_arguments == "text"
            message["tool_calls"] = [call.for_template(as_text=as_text) for call in turn.tool_calls]
        if turn.name:
            message["name"] = turn.name
        if turn.tool_call_id:
            message["tool_call_id"] = turn.tool_call_id
        return message

    def _shows(self, messages: list[Message], tools: list[Message] | None = None) -> bool:
        try:
            return _PROBE in self.render(messages, tools)
        except BadRow:
            return False

    @cached_property
    def shows_system(self) -> bool:
        """False where a system prompt is refused or left out."""
        return self._shows([{"role": "system", "content": _PROBE}, _user("?")])

    @cached_property
    def shows_tools(self) -> bool:
        """False where the tools on offer are left out."""
        return self._shows([_user("?")], [_TOOL])

    @cached_property
    def call_arguments(self) -> Literal["object", "text"] | None:
        """How the template wants a call's arguments, so that they read as JSON; None where calls are left out.

        Some templates print them as they come: an object would then read as Python, {'sku': ...}.
        """
        if "{'" not in (text := self._probe_call({_PROBE: "v"})) and _PROBE in text:
            return "object"
        return "text" if f'{{"{_PROBE}": "v"}}' in self._probe_call(f'{{"{_PROBE}": "v"}}') else None

    def _probe_call(self, arguments: Any) -> str:
        call = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": arguments}}
        try:
            return self.render([_user("?"), {"role": "assistant", "content": "", "tool_calls": [call]}])
        except BadRow:
            return ""

    @cached_property
    def shows_tool_results(self) -> bool:
        """False where a tool's message after a call is left out or refused."""
        arguments: Any = "{}" if self.call_arguments == "text" else {}
        function = {"name": "f", "arguments": arguments}
        calls = [{"type": "function", "id": "abcdefghi", "function": function}]
        call = {"role": "assistant", "content": "", "tool_calls": calls}
        result = {"role": "tool", "content": "result" + _PROBE, "name": "f", "tool_call_id": "abcdefghi"}
        try:
            return "result" + _PROBE in self.render([_user("?"), call, result])
        except BadRow:
            return False

    @cached_property
    def shows_reasoning(self) -> bool:
        """True where the last answer's ``reasoning_content`` is shown."""
        return self._shows([_user("?"), {"role": "assistant", "content": "!", "reasoning_content": _PROBE}])

    @cached_property
    def generation_prompt(self) -> str:
        """What serving adds after the last message; empty where the template adds nothing."""
        before, after = self.render([_user("?")]), self.render([_user("?")], prompt=True)
        return after[len(before) :] if after.startswith(before) else after

    @cached_property
    def thinking(self) -> Thinking:
        """The tags of reasoning; ``opened`` where the generation prompt ends inside it."""
        found = _OPENS.search(self.generation_prompt)
        if found is None:
            return Thinking()
        start = found["tag"]
        end = _CLOSINGS.get(start) or f"{start[0]}/{start[1:]}"
        return Thinking(start=start, end=end, opened=found[0])

    def closing(self, before: list[Message], answer: Message, tools: list[Message] | None) -> str:
        """What the template writes after the text of ``answer``: its calls and the end of the turn.

        Raises:
            BadRow: the template leaves the answer out.
        """
        text = self.render([*before, {**answer, "content": _PROBE}], tools)
        _, found, rest = text.rpartition(_PROBE)
        if not found:
            raise BadRow("the chat template leaves the answer out")
        return rest

    @cached_property
    def ends_turns(self) -> bool:
        """False where nothing but white space follows an answer: the model could not learn to stop."""
        return bool(self.closing([_user("?")], {"role": "assistant"}, None).strip())


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _merge_system(messages: list[Message]) -> list[Message]:
    system, *rest = messages
    first = next((index for index, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        raise BadRow("a system prompt without a question, and the chat template has no system role")
    merged = {**rest[first], "content": f"{system['content']}\n\n{rest[first]['content']}"}
    return [*rest[:first], merged, *rest[first + 1 :]]
