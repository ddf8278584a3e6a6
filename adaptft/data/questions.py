"""Rows as a client of an endpoint would ask them, beside the tokens that training saw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from adaptft.data.conversation import BadRow, Conversation
from adaptft.data.dialects import read_row
from adaptft.data.encoding import Encoder
from adaptft.data.masking import mask
from adaptft.data.reading import detect_source, is_text, parse, raw_rows
from adaptft.data.renaming import rename_columns
from adaptft.data.settings import DataSettings
from adaptft.data.sources import resolve
from adaptft.data.templates import ChatTemplate, Message
from adaptft.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row: what a client sends, and the tokens that training had before the answer.

    ``messages`` are in OpenAI's form; a row of plain text has ``text`` instead, and all of its tokens.
    """

    where: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()
    text: str | None = None
    prompt_ids: tuple[int, ...]


def questions(settings: DataSettings, tokenizer: Any, count: int) -> tuple[Question, ...]:
    """The first ``count`` usable rows of the sources.

    Raises:
        DataError: the sources cannot be read, or no row can be used.
    """
    found = tuple(islice(_questions(settings, tokenizer), count))
    if not found:
        raise DataError(
            f"No row of {', '.join(settings.sources)} can be asked.", fix="Name other rows, with answers, as --dataset."
        )
    return found


def _questions(settings: DataSettings, tokenizer: Any) -> Iterator[Question]:
    encoder = Encoder(tokenizer)
    for source in rename_columns(resolve(settings.sources, settings.hub), settings.columns):
        dialect = detect_source(source)
        for number, raw in raw_rows(source):
            try:
                conversation = read_row(parse(raw, text=is_text(source)), dialect, system=settings.system)
                yield question_of(f"row {number} of {source.name}", conversation, tokenizer, encoder)
            except BadRow:  # training leaves it out and counts it
                continue


def question_of(where: str, conversation: Conversation, tokenizer: Any, encoder: Encoder) -> Question:
    """A conversation that ends with an answer, as it is asked and as it is trained.

    Raises:
        BadRow: the template refuses it.
    """
    if conversation.text is not None:
        (tokens,) = encoder.tokens([conversation.text])
        ids = tokens.ids[:-1] if tokens.ids[-1] == encoder.eos_id else tokens.ids
        return Question(where=where, text=conversation.text, prompt_ids=tuple(ids.tolist()))
    template = ChatTemplate(tokenizer)
    masked = mask(conversation, template)
    end = masked.prompt_end
    prompt = replace(masked, text=masked.text[:end], spans=((0, end),), add_eos=False)
    whole, alone = encoder.tokens([masked, prompt])
    messages, _ = template.messages(conversation)
    return Question(
        where=where,
        messages=tuple(map(_for_api, messages[:-1])),
        tools=conversation.tools,
        prompt_ids=tuple(whole.ids[: len(alone.ids)].tolist()),
    )


def _for_api(message: Message) -> Message:
    """OpenAI's API has the arguments of calls as JSON text; chat templates mostly as objects."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for number, call in enumerate(message["tool_calls"]):
        function = dict(call["function"])
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append({"id": f"call_{number}", **call, "function": function})
    return {**message, "tool_calls": calls}
