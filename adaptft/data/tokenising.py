"""Chunks of raw rows to token ids, in one process or several; results come in the order of the rows."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from adaptft.data.conversation import BadRow
from adaptft.data.detection import Dialect
from adaptft.data.dialects import read_row
from adaptft.data.encoding import Encoder, Tokens
from adaptft.data.masking import MaskedText, mask
from adaptft.data.reading import Raw, parse
from adaptft.data.settings import DataSettings
from adaptft.data.templates import ChatTemplate
from adaptft.data.values import TOO_DEEP
from adaptft.errors import DataError
from adaptft.units import MiB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CHUNK_ROWS = 256
CHUNK_BYTES = 4 * MiB
"""Some ten chunks are in flight for each process: memory stays small whatever the rows are."""
_CHUNKS_BEFORE_POOL = 4
"""Chunks tokenised here before processes are started: small data never waits for them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one source, by its index, with their numbers."""

    source: int
    rows: list[tuple[int, Raw]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTokens:
    """A chunk's accepted rows end to end (``lengths`` tells them apart), and what became of the others."""

    source: int
    numbers: list[int]
    """Numbers of the accepted rows."""
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    rejected: list[tuple[str, int]]
    notes: Counter[str] = field(default_factory=Counter)
    first_noted: dict[str, int] = field(default_factory=dict)
    """The first row of each note."""
    num_conversations: int = 0
    """Accepted rows with more than one answer."""


class RowTokenizer:
    """Everything needed to turn a chunk into tokens; one in each process."""

    def __init__(self, tokenizer: Any, settings: DataSettings, dialects: list[Dialect], texts: list[bool]) -> None:
        self.encoder = Encoder(tokenizer)
        self.settings = settings
        self.dialects = dialects
        self.texts = texts

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template; not asked for by plain text."""
        return ChatTemplate(self.encoder.tokenizer)

    def tokens(self, chunk: Chunk) -> ChunkTokens:
        """Parse, render, mask and tokenise the rows of ``chunk``."""
        rejected: list[tuple[str, int]] = []
        rendered: list[_Rendered] = []
        for number, raw in chunk.rows:
            try:
                rendered.append(self._render(number, raw, chunk.source))
            except BadRow as bad:
                rejected.append((bad.reason, number))
            except RecursionError:  # an object in an object in an object ...
                rejected.append((TOO_DEEP, number))
        accepted: list[tuple[_Rendered, Tokens]] = []
        for row, tokens in zip(rendered, self.encoder.tokens([row.text for row in rendered]), strict=True):
            if tokens.trained[1:].any():  # the first token of a row is never predicted
                accepted.append((row, tokens))
            else:
                rejected.append(("no token in the loss", row.number))
        return _gathered(chunk.source, accepted, sorted(rejected, key=lambda item: item[1]))

    def _render(self, number: int, raw: Raw, source: int) -> _Rendered:
        settings = self.settings
        row = parse(raw, text=self.texts[source])
        conversation = read_row(row, self.dialects[source], system=settings.system)
        control = self.encoder.control_tokens_in(conversation)
        if conversation.text is not None:
            return _Rendered(number, conversation.text, 0, control)
        masked = mask(
            conversation, self.template,
            train_on_prompt=settings.train_on_prompt, mask_history=settings.mask_history,
        )  # fmt: skip
        num_answers = sum(turn.is_answer and turn.trained for turn in conversation.turns)
        return _Rendered(number, masked, num_answers, (*conversation.notes, *masked.notes, *control))


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A row on its way: plain text, or a conversation with its mask."""

    number: int
    text: MaskedText | str
    num_answers: int
    notes: tuple[str, ...]


def _gathered(source: int, rows: list[tuple[_Rendered, Tokens]], rejected: list[tuple[str, int]]) -> ChunkTokens:
    import numpy as np

    return ChunkTokens(
        source=source,
        numbers=[row.number for row, _ in rows],
        lengths=np.fromiter((len(tokens.ids) for _, tokens in rows), np.int32, len(rows)),
        ids=np.concatenate([np.zeros(0, np.int32), *(tokens.ids for _, tokens in rows)]),
        trained=np.concatenate([np.zeros(0, np.bool_), *(tokens.trained for _, tokens in rows)]),
        rejected=rejected,
        notes=Counter(chain.from_iterable((*row.notes, *tokens.notes) for row, tokens in rows)),
        first_noted={note: row.number for row, tokens in reversed(rows) for note in (*row.notes, *tokens.notes)},
        num_conversations=sum(row.num_answers > 1 for row, _ in rows),
    )


def chunks(source: int, rows: Iterable[tuple[int, Raw]]) -> Iterator[Chunk]:
    """``rows`` in chunks: of ``CHUNK_ROWS``, or fewer where rows are long."""
    part: list[tuple[int, Raw]] = []
    size = 0
    for number, raw in rows:
        part.append((number, raw))
        size += _size(raw)
        if len(part) == CHUNK_ROWS or size > CHUNK_BYTES:
            yield Chunk(source, part)
            part, size = [], 0
    if part:
        yield Chunk(source, part)


def _size(raw: Raw) -> int:
    """About how long the texts of a row are."""
    if isinstance(raw, (bytes, str)):
        return len(raw)
    return sum(map(_size, raw.values() if isinstance(raw, dict) else raw)) if isinstance(raw, (dict, list)) else 0


def tokenise_chunks(work: RowTokenizer, parts: Iterator[Chunk], num_proc: int) -> Iterator[ChunkTokens]:
    """Results in order; processes are started once there is more than a little to do.

    Raises:
        DataError: one of the processes was killed.
    """
    for part in islice(parts, _CHUNKS_BEFORE_POOL):
        yield work.tokens(part)
    following = next(parts, None)
    if following is None:
        return
    parts = chain([following], parts)
    if num_proc <= 1:
        yield from map(work.tokens, parts)
        return
    try:
        with ProcessPoolExecutor(num_proc, _context(), initializer=_start_worker, initargs=(work,)) as pool:
            waiting: deque[Future[ChunkTokens]] = deque()
            for part in parts:  # bounded: a fast reader must not pile up rows in memory
                waiting.append(pool.submit(_work_on, part))
                if len(waiting) > 4 * num_proc:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool as cause:
        raise DataError(
            "A process that tokenised rows was killed (the system does so when memory runs out).",
            fix="Free some memory, or use fewer processes: --dataset_num_proc 1",
        ) from cause


def default_num_proc() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context() -> Any:
    """Forked workers start at once; once CUDA is up a fork would carry a broken copy of it."""
    torch = sys.modules.get("torch")
    cuda_is_up = torch is not None and torch.cuda.is_initialized()
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform == "linux"
    return multiprocessing.get_context("fork" if can_fork and not cuda_is_up else "spawn")


_worker: list[RowTokenizer] = []


def _start_worker(work: RowTokenizer) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # of this process alone: it has one core's worth of the work
    gc.freeze()  # the parent's objects are not garbage: looking through them over and over took 4 % of the time
    _worker[:] = [work]


def _work_on(part: Chunk) -> ChunkTokens:
    return _worker[0].tokens(part)
