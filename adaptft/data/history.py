"""Earlier exchanges of an Alpaca row, in all the forms people write."""

from __future__ import annotations

from typing import Any

from adaptft.data.conversation import BadRow, Turn
from adaptft.data.messages import ROLE_KEYS, exchange, read_messages
from adaptft.data.values import as_list


def read_history(value: Any) -> list[Turn]:
    """``history`` as turns. An exchange whose answer is empty stays in place and is not trained.

    Pairs ``[[question, answer], ...]``, one flat pair, messages with roles, pairs as objects, or JSON
    text of any of these. Never split by characters: a text where a pair should stand is an error.

    Raises:
        BadRow: any other form.
    """
    entries = as_list(value, "history")
    if len(entries) == 2 and all(isinstance(entry, str) for entry in entries):
        return exchange(*entries)
    if entries and all(isinstance(entry, dict) and any(key in entry for key in ROLE_KEYS) for entry in entries):
        return read_messages(entries, what="history")
    turns: list[Turn] = []
    for entry in entries:
        turns += _read_entry(entry)
    return turns


def _read_entry(entry: Any) -> list[Turn]:
    if isinstance(entry, dict):
        return read_messages([entry], what="history")
    if not isinstance(entry, list):
        raise BadRow("history entry that is not a pair")
    if len(entry) != 2:
        raise BadRow(f"history entry of {len(entry)} items instead of 2")
    if all(isinstance(message, dict) for message in entry):
        return read_messages(entry, what="history")
    return exchange(*entry)
