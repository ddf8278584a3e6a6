"""One row of training data in the only form that the rest of the package knows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


class BadRow(Exception):
    """A row that cannot be used; ``reason`` groups rows in the report, so it holds little text of the row."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = printable(reason)


def printable(text: str) -> str:
    """``text`` from a data file as it may stand in a message: on one line, without control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function; ``arguments`` is always an object, whatever form the row gave it in."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None

    def for_template(self, *, as_text: bool = False) -> dict[str, Any]:
        """The form that chat templates read: OpenAI's, with the arguments as an object (or, for some, JSON text)."""
        arguments = json.dumps(self.arguments, ensure_ascii=False) if as_text else self.arguments
        call: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": arguments}}
        return {"id": self.id, **call} if self.id is not None else call


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message. ``trained`` is False where the row itself keeps the answer out of the loss."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    trained: bool = True

    @property
    def is_empty(self) -> bool:
        """True where there is nothing to learn: no text and no call."""
        return not self.content.strip() and not self.tool_calls

    @property
    def is_answer(self) -> bool:
        """True for turns that the model is to produce."""
        return self.role == "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Turns and the tools on offer; ``text`` instead of turns for plain text, which is trained whole."""

    turns: tuple[Turn, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    notes: tuple[str, ...] = ()
    """What was changed while reading it; the report counts equal notes."""
