"""What reading found, counted: rejected rows by reason, warnings, and the errors that stop a run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from adaptft.data.detection import Dialect
from adaptft.data.dialects import NO_ANSWER, NO_QUESTION, OTHER_COLUMNS
from adaptft.data.masking import NO_CONTINUATION, REASONING_STRIPPED
from adaptft.data.reading import counts_lines
from adaptft.data.settings import DataSettings
from adaptft.data.sources import Source
from adaptft.data.tables import length_profile
from adaptft.data.tokenising import ChunkTokens
from adaptft.data.values import ONLY_TEXT
from adaptft.errors import DataError
from adaptft.reports import DataReport, RejectedRows
from adaptft.units import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUM_FIRST_LINES = 10
EARLIER_LEFT_OUT = (REASONING_STRIPPED, NO_CONTINUATION)
_MOST_REASONS = 50
"""Some reasons name a role or hold words of the template: a file can have as many as rows."""


@dataclass(slots=True)
class Tally:
    """Counts over all chunks."""

    num_accepted: int = 0
    num_tokens: int = 0
    num_trained_tokens: int = 0
    longest_row_tokens: int = 0
    num_conversations: int = 0
    lengths: list[NDArray[np.int32]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    first_noted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Source and number of the first row of each note."""
    rejected: dict[tuple[int, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def add(self, part: ChunkTokens) -> None:
        """Count one chunk."""
        self.num_accepted += len(part.lengths)
        self.num_tokens += len(part.ids)
        self.num_trained_tokens += int(part.trained.sum())
        self.longest_row_tokens = max(self.longest_row_tokens, int(part.lengths.max(initial=0)))
        self.lengths.append(part.lengths)
        self.num_conversations += part.num_conversations
        self.notes += part.notes
        for note, number in part.first_noted.items():
            self.first_noted.setdefault(note, (part.source, number))
        for reason, number in part.rejected:
            if (part.source, reason) not in self.rejected and len(self.rejected) >= _MOST_REASONS:
                reason = "other reasons"
            count, first = self.rejected.get((part.source, reason), (0, ()))
            first = (*first, number) if count < _NUM_FIRST_LINES else first
            self.rejected[part.source, reason] = (count + 1, first)

    @property
    def length_profile(self) -> tuple[float, ...]:
        """How long the rows are: see ``DatasetShape``."""
        import numpy as np

        return length_profile(np.concatenate(self.lengths)) if self.lengths else ()

    def report(self, sources: tuple[Source, ...], dialects: list[Dialect], settings: DataSettings) -> DataReport:
        """The counts as a report."""
        rejected = tuple(
            RejectedRows(
                reason=reason, count=count, source=sources[index].name, first_lines=first,
                unit="line" if counts_lines(sources[index]) else "row",
            )
            for (index, reason), (count, first) in self.rejected.items()
        )  # fmt: skip
        only_text = all(dialect.kind == "text" for dialect in dialects)
        return DataReport(
            dialect="; ".join(dict.fromkeys(dialect.verdict for dialect in dialects)),
            num_accepted=self.num_accepted,
            num_rejected=sum(rows.count for rows in rejected),
            rejected=rejected,
            warnings=tuple(
                f"{counted(count, 'row')}: {note} ({self._first(note, count, sources)})."
                for note, count in self.notes.most_common()
            ),
            in_the_loss="all of the text" if only_text else self._in_the_loss(settings),
        )

    def _first(self, note: str, count: int, sources: tuple[Source, ...]) -> str:
        """``first: line 12 of my.jsonl``."""
        index, number = self.first_noted[note]
        source = sources[index]
        where = f"{'line' if counts_lines(source) else 'row'} {number:,} of {Path(source.name).name}"
        return f"first: {where}" if count > 1 else where

    def _in_the_loss(self, settings: DataSettings) -> str:
        if settings.train_on_prompt:
            return "prompts and answers (train_on_prompt)"
        several = self.num_conversations
        if not several:
            return "the answers"
        rows = f"{counted(several, 'row')} with more than one"
        if settings.mask_history:
            return f"only the last answer of each row (mask_history; {rows})"
        without = min(several, sum(self.notes[note] for note in EARLIER_LEFT_OUT))
        if without == several:
            return f"only the last answer of each row ({rows}; the warning says why)"
        part = f"; not in {without:,} of them, as the warning says" if without else ""
        return f"the answers, earlier ones of a conversation too ({rows}{part}; mask_history keeps only the last)"


def check_rows(report: DataReport, max_bad_rows: float, names: tuple[str, ...]) -> None:
    """Stop where nothing is left to train on, or too much was left out.

    Raises:
        DataError: with the rejected rows by reason and their first lines.
    """
    total = report.num_accepted + report.num_rejected
    reasons = "; ".join(describe_rejected(rows) for rows in sorted(report.rejected, key=lambda r: -r.count)[:4])
    if report.num_accepted == 0:
        raise DataError(
            f"No row of {', '.join(names)} has a token to train on: {reasons or 'there are no rows'}.",
            fix=f"The rows were read as {report.dialect}. {_fix_for(report)}.",
        )
    share = report.num_rejected / total
    if share > max_bad_rows:
        enough = math.ceil(share * 100) / 100
        raise DataError(
            f"{report.num_rejected:,} of {total:,} rows cannot be used, more than max_bad_rows {max_bad_rows:g} "
            f"allows: {reasons}.",
            fix=f"{_fix_for(report, 'Mend these rows')}, or train without them: --max_bad_rows {enough:g}",
        )


_FIXES = {
    ONLY_TEXT: "adaptft trains on text: leave out what has images, sound or video",
    NO_QUESTION: "A conversation begins with a question: put a user message before the answer",
    NO_ANSWER: "A conversation ends with an answer: add an assistant message at its end",
    OTHER_COLUMNS: "Rows of one form belong into one file: write these into another one, and name both after --dataset",
}
"""What mends the rows, by words of the reason why they were left out."""


def _fix_for(report: DataReport, default: str = "Each needs an answer that is not empty") -> str:
    most = max(report.rejected, key=lambda rows: rows.count, default=None)
    return next((fix for words, fix in _FIXES.items() if most is not None and words in most.reason), default)


def describe_rejected(rows: RejectedRows) -> str:
    """``"empty answer: 3 (excel.csv, row 8, 9, 12)"``."""
    numbers = ", ".join(_runs(rows.first_lines))
    more = ", ..." if rows.count > len(rows.first_lines) else ""
    return f"{rows.reason}: {rows.count:,} ({Path(rows.source).name}, {rows.unit} {numbers}{more})"


def _runs(numbers: tuple[int, ...]) -> list[str]:
    """``21-30`` for numbers in a row, each by itself where it stands alone."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,}-{run[-1]:,}" for run in runs]


def report_lines(report: DataReport) -> list[str]:
    """The report for the terminal, a fact a line."""
    cached = ", from the cache" if report.from_cache else ""
    return [
        f"Rows: {report.dialect}; {report.num_accepted:,} accepted, {report.num_rejected:,} rejected{cached}.",
        *(f"Rejected: {describe_rejected(rows)}." for rows in report.rejected),
        f"In the loss: {report.in_the_loss}.",
        *(f"Warning: {warning}" for warning in report.warnings),
    ]
