"""Tokenised rows on disk, found again by what they were made from: files' contents, tokenizer, template, settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adaptft
from adaptft.data.hub import load_table
from adaptft.data.pruning import mark_used, prune
from adaptft.data.sample import RenderedSample
from adaptft.data.settings import DataSettings
from adaptft.data.sources import Source
from adaptft.errors import DataError, OutputError
from adaptft.facts import DatasetShape
from adaptft.home import cache_folder
from adaptft.records import read_json, write_json
from adaptft.reports import DataReport

if TYPE_CHECKING:
    import datasets

ROWS, ENTRY = "rows.arrow", "entry.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is kept beside the rows."""

    shape: DatasetShape
    report: DataReport
    samples: tuple[RenderedSample, ...]


def data_key(sources: tuple[Source, ...], settings: DataSettings, tokenizer: Any) -> str:
    """A name for the result of tokenising: the same only where every byte that goes into it is the same."""
    import transformers

    made_from = {
        "code": [adaptft.__version__, transformers.__version__, _code_hash()],
        "sources": [[asdict(source), _content(source)] for source in sources],
        "settings": [settings.system, settings.train_on_prompt, settings.mask_history],
        "tokenizer": _tokenizer_hash(tokenizer),
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _content(source: Source) -> str:
    """A hash of the file's bytes: a changed file must never be taken for the old one, whatever its date says."""
    if source.path is None:
        return str(load_table(source)._fingerprint)
    import xxhash

    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(1 << 22))
    try:
        with source.path.open("rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                digest.update(buffer[:size])
    except OSError as cause:
        raise DataError(f"Cannot read {source.path}: {cause.strerror}.", fix="Check its permissions.") from cause
    return digest.hexdigest()


def _code_hash() -> str:
    """Of this package's own sources: what a newer adaptft reads otherwise, it must read again."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _tokenizer_hash(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    parts = [vocabulary, repr(tokenizer.chat_template), repr(tokenizer.special_tokens_map), type(tokenizer).__name__]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find(key: str) -> tuple[datasets.Dataset, Entry] | None:
    """The rows kept under ``key``; None where there are none, or they are damaged (they are then removed)."""
    folder = rows_folder("data", key)
    if not (folder / ENTRY).exists():
        return None
    try:
        entry = read_json(Entry, folder / ENTRY, error=DataError, what="cache entry", fix="Delete it.")
        return open_rows(folder / ROWS, key), entry
    except (DataError, OSError, ValueError):  # pyarrow's errors are ValueErrors and OSErrors
        shutil.rmtree(folder, ignore_errors=True)
        return None


def rows_folder(kind: str, key: str) -> Path:
    """Where rows of one kind (tokenised, cut, packed) are kept under ``key``."""
    return cache_folder("rows", kind, key)


def open_rows(path: Path, fingerprint: str) -> datasets.Dataset:
    """An Arrow file as memory-mapped rows."""
    import datasets

    mark_used(path.parent)
    rows = datasets.Dataset.from_file(str(path))
    rows._fingerprint = fingerprint
    return rows


@contextmanager
def new_folder(kind: str, key: str) -> Iterator[Path]:
    """A folder to fill; it takes its place in the cache when the block ends well, and is removed otherwise.

    Raises:
        OutputError: the cache cannot be written, or the disk is full.
    """
    parent = rows_folder(kind, key).parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=parent))
        try:
            yield partial
            with contextlib.suppress(FileExistsError):
                _take_place(partial, parent / key)
                prune(parent.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as cause:
        raise OutputError(
            f"Cannot write tokenised rows to {parent}: {cause.strerror or cause}.",
            fix="Free some space, or set ADAPTFT_HOME to a folder on another disk.",
        ) from cause


def _take_place(partial: Path, target: Path) -> None:
    """Move a finished folder into its place; another process may have been faster with the same content."""
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def keep(folder: Path, entry: Entry) -> None:
    """Write the entry beside the rows, last: a folder without it is not whole."""
    write_json(folder / ENTRY, entry)
