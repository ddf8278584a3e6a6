"""Rows of other tasks than answering (preference pairs, thumbs, labels): refused, with what the user can ask for.

Fine-tuning on them as they stand would train on the bad answers too, or lose the labels without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from adaptft.data.conversation import printable
from adaptft.data.messages import ROLE_KEYS, ROLES
from adaptft.errors import DataError

Rows = list[dict[str, Any]]
_QUESTION_COLUMNS = ("prompt", "query", "question", "instruction", "conversations", "messages")
_ANSWER_COLUMNS = ("completion", "response", "output", "answer", "messages", "conversations", "conversation")
_LABELS = ("label", "labels", "标签", "標籤")
_THUMBS = frozenset(
    ("true", "false", "1", "0", "yes", "no", "good", "bad", "desirable", "undesirable", "chosen", "rejected", "up",
     "down", "👍", "👎")
)  # fmt: skip


def refuse_other_tasks(by_name: Mapping[str, str], rows: Rows, renames: Mapping[str, str], where: str) -> None:
    """Stop at rows of another task, unless ``renames`` says which of their columns to train on.

    Args:
        by_name: the source's columns by the names that forms know them by.
        renames: names that the user or a registration gives: a form's column to the source's own.

    Raises:
        DataError: with the ``--columns`` that would train on their good answers, or on their labels.
    """
    if {"chosen", "rejected"} <= by_name.keys():
        _refuse(where, "preference pairs", by_name, _good_answers(_columns_of_chosen(by_name, rows)))
    if by_name.keys() & {"rejected_response", "rejected_messages"} and not renames.keys() & set(_ANSWER_COLUMNS):
        kept = {name: name for name in by_name if name in (*_QUESTION_COLUMNS, *_ANSWER_COLUMNS)}
        _refuse(where, "preference pairs", by_name, _good_answers(kept))
    if "kto_tag" in by_name or _has_thumbs(by_name, rows):
        fix = "Keep the rows with a good answer and delete the column that marks them."
        _refuse(where, "answers with a thumb up or down (KTO)", by_name, fix)
    if {"completions", "labels"} <= by_name.keys():
        fix = "Write the good answers as rows of messages, or of prompt and completion."
        _refuse(where, "steps with labels (process rewards)", by_name, fix)


def refuse_labels(text: str, ignored: tuple[str, ...], renames: Mapping[str, str], where: str) -> None:
    """Stop where plain text in the column ``text`` has a class beside it that would be ignored.

    Raises:
        DataError: with the ``--columns`` for either meaning.
    """
    label = next((name for name in ignored if name.lower() in _LABELS), None)
    if label is not None and text not in renames.values():
        learn, read = _option({text: "query", label: "response"}), _option({text: "text"})
        raise DataError(
            f"{where} holds texts with labels ({text}, {label}); read as plain text, the labels would be lost.",
            fix=f"To learn the labels (as words, not numbers): {learn}; to learn the texts alone: {read}",
        )


def _refuse(where: str, task: str, by_name: Mapping[str, str], fix: str) -> None:
    columns = printable(", ".join(list(by_name.values())[:12]))
    raise DataError(f"{where} holds {task} ({columns}); this command fine-tunes on answers.", fix=fix)


def _good_answers(columns: Mapping[str, str]) -> str:
    return f"To train on the good answers and leave the others out: {_option(columns)}"


def _option(columns: Mapping[str, str]) -> str:
    return f"--columns '{json.dumps(columns, ensure_ascii=False)}'"


def _columns_of_chosen(by_name: Mapping[str, str], rows: Rows) -> dict[str, str]:
    """What to rename so that the chosen answers are trained: of texts, messages, or whole conversations."""
    chosen = by_name["chosen"]
    value = next((row[chosen] for row in rows if row.get(chosen)), None)
    question = next((by_name[name] for name in _QUESTION_COLUMNS if name in by_name), None)
    if isinstance(value, list) and not _is_answer(value[0]):
        return {chosen: "messages"}
    return {chosen: "text"} if question is None else {question: "query", chosen: "response"}


def _is_answer(message: Any) -> bool:
    role = next((message[key] for key in ROLE_KEYS if key in message), None) if isinstance(message, dict) else None
    return isinstance(role, str) and ROLES.get(role.strip().lower()) in ("assistant", "call")


def _has_thumbs(by_name: Mapping[str, str], rows: Rows) -> bool:
    """True where a column ``label`` beside answers says good or bad, as a boolean, a number or a word."""
    if "label" not in by_name or not by_name.keys() & set(_ANSWER_COLUMNS):
        return False
    labels = [row.get(by_name["label"]) for row in rows]
    return any(label is not None for label in labels) and all(
        label is None or str(label).strip().lower() in _THUMBS for label in labels
    )
