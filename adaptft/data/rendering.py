"""rendering.json: how training wrote a few fixed conversations, so that serving can be held against it later.

The conversations are none of the data's: a result can be given away with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft.data.conversation import BadRow, Conversation, Turn
from adaptft.data.encoding import Encoder
from adaptft.data.questions import Question, question_of
from adaptft.errors import OutputError
from adaptft.records import read_json, write_json

FILE_NAME = "rendering.json"
_ASK = Turn(role="user", content="What is 2 + 2? Answer in one word.")
_CONVERSATIONS: dict[str, tuple[Turn, ...]] = {
    "a question": (_ASK,),
    "a question with a system prompt": (Turn(role="system", content="You answer\nin one word."), _ASK),
    "a second question": (_ASK, Turn(role="assistant", content="Four."), Turn(role="user", content="  Und 3 + 3?\n")),
}
_ANSWER = Turn(role="assistant", content="Six.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """Conversations beside the tokens that training made of them."""

    questions: tuple[Question, ...]


def write_rendering(folder: Path, tokenizer: Any) -> None:
    """Write ``folder/rendering.json``; nothing for a model without a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return
    encoder, questions = Encoder(tokenizer), []
    for where, turns in _CONVERSATIONS.items():
        try:
            questions.append(question_of(where, Conversation(turns=(*turns, _ANSWER)), tokenizer, encoder))
        except BadRow:  # the template refuses such a conversation, in serving too
            continue
    write_json(folder / FILE_NAME, Rendering(questions=tuple(questions)))


def read_rendering(folder: Path) -> Rendering | None:
    """What training recorded in ``folder``; None where it recorded nothing.

    Raises:
        OutputError: the file is there and cannot be understood.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    return read_json(
        Rendering, path, error=OutputError, what="record of the rendering",
        fix="Delete the file to check without it, or export again.",
    )  # fmt: skip
