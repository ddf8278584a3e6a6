"""Rows of any dialect as conversations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adaptft.data.conversation import BadRow, Conversation, Turn
from adaptft.data.detection import Dialect
from adaptft.data.history import read_history
from adaptft.data.messages import read_messages, read_tools
from adaptft.data.values import ONLY_TEXT, Row, as_text, is_missing

ENDS_WITH_QUESTION = "turns after the last answer were left out"
NO_PROMPT = "empty prompt"
NO_QUESTION = "no question before the answer"
NO_ANSWER = "no answer"
OTHER_COLUMNS = "other columns"
REQUIRED_ROLES = ("messages", "prompt", "answer", "text")
MEDIA = ("images", "image", "audios", "audio", "videos", "video")
MOST_COLUMNS_NAMED = 8
MOST_MESSAGES = 1000
"""Each answer is rendered with all that stands before it: at ten times as many a row takes minutes."""


def read_row(row: Any, dialect: Dialect, *, system: str | None = None) -> Conversation:
    """One row as a conversation that ends with an answer.

    Args:
        system: system prompt for rows that have none.

    Raises:
        BadRow: no or an empty answer, an empty prompt, or a cell of a form that cannot be meant.
    """
    if not isinstance(row, dict):
        raise BadRow("not an object with columns")
    _refuse_foreign(row, dialect)
    if dialect.kind == "text":
        return _text(as_text(_cell(row, dialect, "text"), "text"))
    read = _read_exchange if dialect.kind == "exchange" else _read_messages
    turns = read(row, dialect)
    if len(turns) == 1 and turns[0].is_answer and not turns[0].tool_calls:  # ms-swift's pre-training rows
        return _text(turns[0].content)
    if len(turns) > MOST_MESSAGES:
        raise BadRow(f"more than {MOST_MESSAGES:,} messages")
    tools = read_tools(_cell(row, dialect, "tools"))
    asked = as_text(_cell(row, dialect, "system"), "system prompt")
    return _finish(_with_system(turns, asked if asked.strip() else system), tools)


def _refuse_foreign(row: Row, dialect: Dialect) -> None:
    """Rows of another form than the source's first ones, and rows that are not text alone.

    Raises:
        BadRow: says which columns it has instead, or what cannot be trained.
    """
    columns = dialect.columns
    needed = [columns[role] for role in REQUIRED_ROLES if role in columns]
    if any(column not in row for column in needed):
        others = ", ".join(str(key)[:40] for key in list(row)[:MOST_COLUMNS_NAMED]) or "none"
        raise BadRow(f"{OTHER_COLUMNS} ({others}) than {', '.join(needed)}")
    media = next((name for name in MEDIA if row.get(name) and name not in columns.values()), None)
    if media is not None:
        raise BadRow(f"has {media}; {ONLY_TEXT}")


def _cell(row: Row, dialect: Dialect, role: str) -> Any:
    column = dialect.columns.get(role)
    return None if column is None else row.get(column)


def _text(text: str) -> Conversation:
    if not text.strip():
        raise BadRow("empty text")
    return Conversation(text=text)


def _read_messages(row: Row, dialect: Dialect) -> list[Turn]:
    turns = read_messages(_cell(row, dialect, "messages"), dialect.tags)
    if not turns:
        raise BadRow("no messages")
    return turns


def _read_exchange(row: Row, dialect: Dialect) -> list[Turn]:
    turns = read_history(_cell(row, dialect, "history"))
    prompt = _cell(row, dialect, "prompt")
    if _is_messages(prompt):
        turns += [replace(turn, trained=False) for turn in read_messages(prompt, dialect.tags)]
    else:
        question = as_text(prompt, "prompt")
        context = as_text(_cell(row, dialect, "input"), "input")
        question = "\n".join(part for part in (question, context) if part.strip())
        if not question:
            raise BadRow(NO_PROMPT)
        turns.append(Turn(role="user", content=question))
    answer = _cell(row, dialect, "answer")
    if _is_messages([answer]):  # LLaMA-Factory's chosen
        answer = [answer]
    if _is_messages(answer):
        answered = read_messages(answer, dialect.tags)
        if not answered[0].is_answer and answered[0].role != "tool":
            raise BadRow("answer that repeats the question: a whole conversation, to be named messages")
        return turns + answered
    return [*turns, Turn(role="assistant", content=as_text(answer, "answer"))]


def _is_messages(value: Any) -> bool:
    """True for a list of messages. A text is never one: an answer may well be JSON that looks like messages."""
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(isinstance(item, dict) and ("role" in item or "from" in item) for item in value)


def _with_system(turns: list[Turn], system: str | None) -> list[Turn]:
    turns = [turn for turn in turns if turn.role != "system" or turn.content.strip()]
    if is_missing(system) or any(turn.role == "system" for turn in turns):
        return turns
    return [Turn(role="system", content=system or ""), *turns]


def _finish(turns: list[Turn], tools: tuple[dict[str, Any], ...]) -> Conversation:
    last = max((index for index, turn in enumerate(turns) if turn.is_answer), default=None)
    if last is None:
        raise BadRow(NO_ANSWER)
    if turns[last].is_empty:
        raise BadRow("empty answer")
    if not any(turn.role in ("user", "tool") for turn in turns[:last]):
        raise BadRow(NO_QUESTION)
    notes = (ENDS_WITH_QUESTION,) if last + 1 < len(turns) else ()
    return Conversation(turns=tuple(turns[: last + 1]), tools=tools, notes=notes)
