"""Names of data resolved to files and hub tables: ``path``, ``id:subset#500``, ``hf::id``, ``ms::id``."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from adaptft.data.messages import Tags
from adaptft.data.registry import FILE_NAME, REGISTERED_ELSEWHERE, Registered, read_registry
from adaptft.data.streams import COMPRESSIONS, bare_suffix
from adaptft.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt")
_LIMIT = re.compile(r"(?P<rest>.+)#(?P<limit>\d+)")
_HUB_ID = re.compile(r"(?P<id>[\w.-]+(/[\w.-]+)?)(:(?P<subset>[\w.-]+))?")
_HUB_PREFIXES: dict[str, Literal["hf", "modelscope"]] = {"hf::": "hf", "ms::": "modelscope"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file (``path``) or one hub table (``hub_id``); ``limit`` takes that many rows from its start."""

    name: str
    path: Path | None = None
    hub: Literal["hf", "modelscope"] = "hf"
    hub_id: str | None = None
    subset: str | None = None
    split: str | None = None
    limit: int | None = None
    renames: dict[str, str] = field(default_factory=dict)
    tags: Tags = field(default_factory=Tags)


def resolve(names: tuple[str, ...], hub: Literal["hf", "modelscope"] | None = None) -> tuple[Source, ...]:
    """The files and tables that ``names`` stand for, in order; folders give all their data files.

    Raises:
        DataError: no such file, a folder without data files, or a name that is neither a path nor a hub id.
    """
    return tuple(source for name in names for source in _resolve_one(name, hub or "hf"))


def _resolve_one(name: str, hub: Literal["hf", "modelscope"]) -> list[Source]:
    if found := _local(name, None):
        return found
    rest, limit = name, None
    if match := _LIMIT.fullmatch(name):
        rest, limit = match["rest"], int(match["limit"])
        if limit == 0:
            raise DataError(f"{name} asks for 0 rows.", fix="Write the number of rows after #, such as #500.")
        if found := _local(rest, limit):
            return found
    for prefix, named_hub in _HUB_PREFIXES.items():
        if rest.lower().startswith(prefix):
            return [_on_hub(rest[len(prefix) :], name, named_hub, limit)]
    if _looks_like_path(rest) or _is_misspelt_file(rest):
        raise _no_such_file(Path(rest).expanduser())
    return [_on_hub(rest, name, hub, limit)]


def _local(name: str, limit: int | None) -> list[Source]:
    """Sources of an existing path, or of ``folder/NAME`` registered in the folder's dataset_info.json."""
    path = Path(name).expanduser()
    if path.is_dir():
        return [replace(source, limit=limit) for source in _in_folder(path)]
    registry = read_registry(path.parent)
    if path.exists():
        entries = [entry for entry in registry.values() if entry.file_name == path.name]
        return [_file(path, limit, entries[0] if len(entries) == 1 else None)]
    entry = registry.get(path.name)
    return [] if entry is None else _registered(path, entry, limit)


def _registered(path: Path, entry: Registered, limit: int | None) -> list[Source]:
    entry.refuse_unusable(path)
    limit = limit or entry.num_samples
    if entry.file_name is None:
        found = _on_hub(f"{entry.hub_id}", str(path), entry.hub, limit)
        return [replace(found, subset=entry.subset, split=entry.split, renames=entry.renames, tags=entry.tags)]
    target = path.parent / entry.file_name
    if target.is_dir():
        return [replace(s, limit=limit, renames=entry.renames, tags=entry.tags) for s in _in_folder(target)]
    if not target.exists():
        raise _no_such_file(target)
    return [_file(target, limit, entry)]


def _file(path: Path, limit: int | None, entry: Registered | None) -> Source:
    if not path.is_file():
        raise DataError(f"{path} is not a file.", fix="Name a data file, a folder of them, or a hub id.")
    if bare_suffix(path) not in SUFFIXES:
        raise DataError(
            f"{path} is of no known data format.",
            fix=f"Known: {' '.join(SUFFIXES)}, also compressed ({' '.join(COMPRESSIONS)}).",
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty.", fix="Write one row a line into it, or name another file.")
    if entry is None:
        return Source(name=str(path), path=path, limit=limit)
    entry.refuse_unusable(path)
    return Source(
        name=str(path), path=path, limit=limit or entry.num_samples, renames=entry.renames, tags=entry.tags
    )  # fmt: skip


def _in_folder(folder: Path) -> list[Source]:
    files = sorted(
        path for path in folder.rglob("*")
        if path.is_file() and bare_suffix(path) in SUFFIXES and not _is_bookkeeping(path, folder)
    )  # fmt: skip
    if not files:
        raise DataError(
            f"{folder} holds no data files.", fix=f"Put rows into it as one of {' '.join(SUFFIXES)}, or name a file."
        )
    return [source for path in files for source in _local(str(path), None)]


def _is_bookkeeping(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    return hidden or path.name in (FILE_NAME, "state.json", "dataset_dict.json", "dataset_infos.json")


def _looks_like_path(name: str) -> bool:
    path = Path(name)
    many_parts = len(path.parts) > 2 or path.is_absolute() or name.startswith(("./", "../", "~"))
    return many_parts or bare_suffix(path) in SUFFIXES or _HUB_ID.fullmatch(name) is None


def _is_misspelt_file(name: str) -> bool:
    """``alpaca.jsnl``: its ending is nearly that of a data file, or a file of nearly that name is there."""
    path = Path(name)
    if not re.fullmatch(r"\.[A-Za-z]\w*", path.suffix):
        return False
    near_ending = difflib.get_close_matches(path.suffix.lower(), SUFFIXES, 1, 0.7)
    return bool(near_ending) or _nearest_file(path.expanduser()) is not None


def _nearest_file(path: Path) -> Path | None:
    """The data file beside ``path`` whose name is most like its."""
    there = path.parent.iterdir() if path.parent.is_dir() else iter(())
    names = [other.name for other in there if bare_suffix(other) in SUFFIXES or other.is_dir()]
    nearest = difflib.get_close_matches(path.name, names, 1)
    return path.parent / nearest[0] if nearest else None


def _no_such_file(path: Path) -> DataError:
    nearest = _nearest_file(path)
    fix = f"Did you mean {nearest}?" if nearest else "Check the path; a hub id is written owner/name."
    return DataError(f"{path} does not exist.", fix=fix)


def _on_hub(name: str, whole: str, hub: Literal["hf", "modelscope"], limit: int | None) -> Source:
    if name in REGISTERED_ELSEWHERE:
        raise DataError(
            f"{name} is a name that LLaMA-Factory's own data/dataset_info.json gives to data; only there it is known.",
            fix=f"Name it with that folder: --dataset LLaMA-Factory/data/{name}, or name the file itself.",
        )
    match = _HUB_ID.fullmatch(name)
    if match is None:
        raise DataError(
            f"{whole} is neither a path nor a hub id.", fix="Write owner/name, owner/name:subset or owner/name#500."
        )
    return Source(name=whole, hub=hub, hub_id=match["id"], subset=match["subset"], limit=limit)
