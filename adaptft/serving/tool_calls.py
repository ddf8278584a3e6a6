"""Calls of tools in an answer's text, for the transformers engine; vLLM and SGLang have parsers of their own.

Two forms are read: Hermes's, which Qwen 2.5, Qwen 3 and many others use, ``<tool_call>{"name": ..., "arguments":
{...}}</tool_call>``; and Llama 3's, where the whole answer is ``{"name": ..., "parameters": {...}}``. What is neither
stays text.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from adaptft.models.text_streams import StopTexts

BEGIN = "<tool_call>"
_HERMES = re.compile(rf"{BEGIN}\s*(\{{.*?\}})\s*(?:</tool_call>|\Z)", re.DOTALL)

Call = dict[str, Any]


def read_calls(text: str) -> tuple[str, list[Call]]:
    """The text before the calls, and the calls in OpenAI's form; all of ``text`` and none where it holds none."""
    before, mark, _ = text.partition(BEGIN)
    parts = _HERMES.findall(text) if mark else [text]
    calls = [_call(part, "arguments" if mark else "parameters") for part in parts]
    found = [call for call in calls if call is not None]
    if not found or len(found) < len(calls):
        return text, []
    return (before if mark else "").strip(), found


def _call(text: str, arguments: str) -> Call | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or arguments not in said:
        return None
    given = said[arguments]
    function = {"name": said["name"], "arguments": given if isinstance(given, str) else json.dumps(given)}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


@dataclass(slots=True)
class BeforeCalls:
    """Lets the pieces of a streamed answer through until a call may have begun."""

    _gate: StopTexts = field(default_factory=lambda: StopTexts((BEGIN,)))
    _text: str = ""
    said: str = ""

    def push(self, piece: str) -> str:
        """What of the answer so far is certainly no call and was not said yet."""
        self._text += piece
        if self._text.lstrip().startswith("{"):
            return ""
        sayable = self._gate.push(piece)
        self.said += sayable
        return sayable
