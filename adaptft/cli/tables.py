"""Small tables that several pages use."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group
from rich.table import Table
from rich.text import Text


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """A name and, beside it, a text that wraps."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    return table


def remarks(texts: Iterable[str], *, mark: str = "-") -> Table:
    """One text a line, wrapped beside its mark."""
    table = Table.grid(padding=(0, 1))
    table.add_column(style="bold yellow")
    table.add_column(overflow="fold")
    for text in texts:
        table.add_row(mark, text)
    return table


def commands(heading: str, lines: Iterable[str]) -> Group:
    """Commands to copy: each on one line, however long; not for a table or padding, which would cut them."""
    texts = [Text(heading, "bold"), *(Text(f"  {line}") for line in lines)]
    for text in texts:
        text.no_wrap, text.overflow = True, "ignore"
    return Group(*texts, Text())
