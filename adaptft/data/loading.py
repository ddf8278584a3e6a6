"""From names of data to tokenised rows: the way in for everyone else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from adaptft.data import cache
from adaptft.data.detection import Dialect
from adaptft.data.reading import counts_lines, detect_source, is_text, raw_rows
from adaptft.data.renaming import check_renamed, rename_columns
from adaptft.data.reporting import Tally, check_rows
from adaptft.data.sample import RenderedSample, SampleRows
from adaptft.data.settings import DataSettings, TokenizedData
from adaptft.data.sources import Source, resolve
from adaptft.data.tables import TOKENS, TableWriter, table_writer
from adaptft.data.templates import ChatTemplate
from adaptft.data.tokenising import ChunkTokens, RowTokenizer, chunks, default_num_proc, tokenise_chunks
from adaptft.facts import DatasetShape

Progress = Callable[[int, int], None]
"""Called now and then with the rows and the tokens done so far."""


def tokenize(settings: DataSettings, tokenizer: Any, *, on_progress: Progress | None = None) -> TokenizedData:
    """Read, render, mask and tokenise the sources; a second call with the same contents reads the cache.

    Args:
        tokenizer: the model's, with its chat template.

    Raises:
        DataError: a source that is missing, empty, broken or of unknown columns; no row with a token to
            train on; more unusable rows than ``settings.max_bad_rows``.
        OutputError: the cache cannot be written.
    """
    sources = rename_columns(resolve(settings.sources, settings.hub), settings.columns)
    key = cache.data_key(sources, settings, tokenizer)
    found = cache.find(key)
    if found is None:
        _fill_cache(key, sources, settings, tokenizer, on_progress)
        found = cache.find(key)
        if found is None:
            raise RuntimeError(f"rows just written to {cache.rows_folder('data', key)} cannot be read back")
        rows, entry = found
        report = entry.report
    else:
        rows, entry = found
        report = replace(entry.report, from_cache=True)
    check_rows(report, settings.max_bad_rows, settings.sources)
    return TokenizedData(rows=rows, shape=entry.shape, report=report, samples=entry.samples)


def _fill_cache(
    key: str, sources: tuple[Source, ...], settings: DataSettings, tokenizer: Any, on_progress: Progress | None
) -> None:
    dialects = [detect_source(source) for source in sources]
    check_renamed(settings.columns, dialects)
    if any(dialect.kind != "text" for dialect in dialects):
        ChatTemplate(tokenizer)  # refuses a model that has none before any row is read
    work = RowTokenizer(tokenizer, settings, dialects, [is_text(source) for source in sources])
    parts = chain.from_iterable(chunks(index, raw_rows(source)) for index, source in enumerate(sources))
    with cache.new_folder("data", key) as folder:
        with table_writer(folder / cache.ROWS, TOKENS) as writer:
            results = tokenise_chunks(work, parts, settings.num_proc or default_num_proc())
            tally, samples = _write(results, writer, sources, on_progress)
        cache.keep(folder, _entry(tally, samples.render(tokenizer), sources, dialects, settings))


def _write(
    results: Iterator[ChunkTokens], writer: TableWriter, sources: tuple[Source, ...], on_progress: Progress | None
) -> tuple[Tally, SampleRows]:
    tally, samples = Tally(), SampleRows()
    for part in results:
        samples.add(part.lengths, part.ids, part.trained, partial(_name, part, sources[part.source]))
        tally.add(part)
        writer.write(part.lengths, {"input_ids": part.ids, "trained": part.trained})
        if on_progress is not None:
            on_progress(tally.num_accepted, tally.num_tokens)
    return tally, samples


def _name(part: ChunkTokens, source: Source, index: int) -> str:
    return f"{'line' if counts_lines(source) else 'row'} {part.numbers[index]:,} of {Path(source.name).name}"


def _entry(
    tally: Tally, samples: tuple[RenderedSample, ...], sources: tuple[Source, ...], dialects: list[Dialect],
    settings: DataSettings,
) -> cache.Entry:  # fmt: skip
    shape = DatasetShape(
        num_rows=tally.num_accepted,
        num_tokens=tally.num_tokens,
        length_profile=tally.length_profile,
        num_trained_tokens=tally.num_trained_tokens,
        longest_row_tokens=tally.longest_row_tokens,
        sources=settings.sources,
    )
    return cache.Entry(shape=shape, report=tally.report(sources, dialects, settings), samples=samples)
