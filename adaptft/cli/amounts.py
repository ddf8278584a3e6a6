"""Amounts that a person types: ``12h``, ``$50``, ``2.95``, ``h100=2.95``."""

from __future__ import annotations

import re

from adaptft.errors import RequestError
from adaptft.policy.gpus import row_named
from adaptft.policy.prices import ANY_GPU, Price, Prices

_UNIT_SECONDS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|d|h|m|s)?\s*")
ASKED_FOR = "--price"


def read_seconds(words: str) -> float:
    """``12h``, ``1h30m``, ``2d``, ``90 min``; a bare number is hours.

    Raises:
        RequestError: it is no time, or none at all.
    """
    position, seconds, text = 0, 0.0, words.strip().lower()
    while position < len(text) and (part := _PART.match(text, position)):
        seconds += float(part[1]) * _UNIT_SECONDS[part[2] or "h"]
        position = part.end()
    if position < len(text) or seconds <= 0:
        raise RequestError(f"--deadline {words} is no time.", fix="Write it like 12h, 90min, 1h30m or 2d.")
    return seconds


def read_usd(words: str, option: str) -> float:
    """``50`` or ``$50``.

    Raises:
        RequestError: it is no amount of money, or none at all.
    """
    try:
        usd = float(words.strip().removeprefix("$"))
    except ValueError:
        usd = 0.0
    if not 0 < usd < float("inf"):
        raise RequestError(f"{option} {words} is no amount in US dollars.", fix=f"Write it like {option} 2.95")
    return usd


def read_prices(words: tuple[str, ...], known: Prices) -> Prices:
    """``known`` with what ``--price`` says: ``2.95`` for every GPU, ``h100=2.95`` for one kind.

    Raises:
        RequestError: no such GPU, or no amount.
    """
    found = dict(known)
    for word in ",".join(words).split(",") if words else ():
        name, equals, amount = word.rpartition("=")
        board, _, profile = name.partition(":")
        key = row_named(board).key + (f":{profile}" if profile else "") if equals else ANY_GPU
        found[key] = Price(read_usd(amount, ASKED_FOR), "", ASKED_FOR)
    return found
