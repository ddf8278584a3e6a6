"""The comparison as one HTML file: a table and two charts, no scripts, nothing fetched, readable in dark and light."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from adaptft.cli.comparison import HEADINGS, cells
from adaptft.policy.comparison import Option, Recommendation
from adaptft.units import format_seconds

STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --line: #d0d7de; --dim: #59636e;
  --time: #0b6e99; --cost: #9a5b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #3d444d; --dim: #9198a1;
  --time: #58b8e0; --cost: #e0a04a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td:nth-child(n+4), th:nth-child(n+4) { text-align: right; white-space: nowrap; }
tr.no td, .notes { color: var(--dim); }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
.time { fill: var(--time); } .cost { fill: var(--cost); }"""
NAME_WIDTH, BAR_WIDTH, VALUE_WIDTH, ROW_HEIGHT, BAR_HEIGHT = 170, 520, 150, 26, 16


def page(title: str, options: tuple[Option, ...], advice: tuple[Recommendation, ...], notes: Iterable[str]) -> str:
    """The whole file."""
    told = "".join(
        f"<li><strong>{escape(r.word.capitalize())}</strong>: {escape(r.name)} ({escape(r.reason)})</li>"
        for r in advice
    )
    charts = [
        _chart("Time of the whole run", "time", options, lambda option: option.total_seconds, format_seconds),
        _chart("Cost of the whole run", "cost", options, lambda option: option.usd, lambda usd: f"${usd:.2f}"),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            f"<ul>{told}</ul>" if told else "<p>The job fits none of these machines.</p>",
            _table(options),
            *charts,
            f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>',
            "</body>\n</html>\n",
        ]
    )


def _table(options: tuple[Option, ...]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    rows = "\n".join(
        f'<tr class="{"yes" if option.fits else "no"}">'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells(option))
        + "</tr>"
        for option in options
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _chart(
    heading: str,
    kind: str,
    options: tuple[Option, ...],
    measure: Callable[[Option], float | None],
    words: Callable[[float], str],
) -> str:
    """Bars, shortest first; empty where nothing is known."""
    known = [(option.name, value) for option in options if option.fits and (value := measure(option)) is not None]
    if not known:
        return ""
    known.sort(key=lambda pair: pair[1])
    longest = max(value for _, value in known) or 1.0
    bars = "\n".join(_bar(row, name, value / longest, words(value), kind) for row, (name, value) in enumerate(known))
    width, height = NAME_WIDTH + BAR_WIDTH + VALUE_WIDTH, ROW_HEIGHT * len(known)
    return (
        f'<h2>{escape(heading)}</h2>\n<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(heading)}">\n{bars}\n</svg>'
    )


def _bar(row: int, name: str, share: float, words: str, kind: str) -> str:
    top, length = row * ROW_HEIGHT, max(2.0, BAR_WIDTH * share)
    middle = top + ROW_HEIGHT / 2 + 4
    return (
        f'<text x="{NAME_WIDTH - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{NAME_WIDTH}" y="{top + 5}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2"/>'
        f'<text x="{NAME_WIDTH + length + 8:.1f}" y="{middle:.0f}">{escape(words)}</text>'
    )
