"""The user's own prices: ``prices.csv`` in ``~/.config/adaptft`` (``adaptft plan --prices`` prints one to start from).

A line a GPU: its key in the table (or the name of a board, or ``a100-80g:mig-3g.40gb``), US dollars for one GPU and
hour, the day it was seen, and who asks it. What is not in the file keeps its default::

    gpu,usd_per_hour,date,source
    h100,2.95,2026-11-30,our contract
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from adaptft.errors import RequestError
from adaptft.home import settings_folder
from adaptft.policy.gpus import row_named
from adaptft.policy.prices import PRICES, Price, Prices

COLUMNS = ("gpu", "usd_per_hour", "date", "source")


def price_file() -> Path:
    """Where the user's prices are, if there are any."""
    return settings_folder("prices.csv")


def known_prices() -> Prices:
    """The defaults with the user's file over them.

    Raises:
        RequestError: the file cannot be read, or a line of it cannot be meant.
    """
    path = price_file()
    if not path.exists():
        return PRICES
    try:
        return {**PRICES, **read_prices(path.read_text(encoding="utf-8"), str(path))}
    except (OSError, UnicodeDecodeError) as cause:
        raise RequestError(f"Cannot read {path}: {cause}.", fix="Mend it, or delete it to use the defaults.") from cause


def read_prices(text: str, name: str) -> dict[str, Price]:
    """The lines of a price file called ``name``.

    Raises:
        RequestError: another header, an unknown GPU, or no price.
    """
    rows = csv.DictReader(line for line in io.StringIO(text) if line.strip() and not line.startswith("#"))
    if tuple(rows.fieldnames or ()) != COLUMNS:
        raise RequestError(f"{name} does not begin with {','.join(COLUMNS)}.", fix="adaptft plan --prices prints one.")
    return dict(_price(row, name) for row in rows)


def _price(row: dict[str, str], name: str) -> tuple[str, Price]:
    board, _, profile = (row["gpu"] or "").partition(":")
    try:
        usd = float(row["usd_per_hour"])
    except (TypeError, ValueError):
        usd = 0.0
    if usd <= 0:
        raise RequestError(
            f"{name}: {row['usd_per_hour']} is no price for {row['gpu']}.", fix="Write US dollars per GPU and hour."
        )
    key = row_named(board).key + (f":{profile}" if profile else "")
    return key, Price(usd, row["date"] or "", row["source"] or f"{Path(name).name}")


def price_text(prices: Prices) -> str:
    """``prices`` as such a file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((key, f"{price.usd_per_hour:g}", price.date, price.source) for key, price in prices.items())
    return text.getvalue()
