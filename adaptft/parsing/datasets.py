"""Data as other frameworks name it: Axolotl's list of mappings, LLaMA-Factory's dataset_dir and max_samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaptft.parsing.given import Given
from adaptft.parsing.lists import read_list
from adaptft.parsing.nearest import did_you_mean

INFO_FILE = "dataset_info.json"

# keys of an Axolotl entry that adaptft finds out by itself from the columns
_FOUND_OUT = frozenset(
    {"type", "ds_type", "conversation", "chat_template", "field_messages", "message_property_mappings"}
)
_SELECTING = frozenset({"path", "name", "split", "data_files"})


def flatten_entries(given: Given) -> Given:
    """``[{path: a, name: b}]`` as ``["a:b"]``; anything else as it is.

    Raises:
        RequestError: an entry has no path, or a key that adaptft does not know.
    """
    entries = [given.raw] if isinstance(given.raw, dict) else given.raw
    if not isinstance(entries, list) or not any(isinstance(e, dict) for e in entries):
        return given
    return given.with_raw([source for e in entries for source in (_sources(e, given) if isinstance(e, dict) else [e])])


def _sources(entry: dict[str, Any], given: Given) -> list[str]:
    for key in entry:
        if key not in _FOUND_OUT | _SELECTING:
            fix = did_you_mean(
                str(key), sorted(_SELECTING), "Keep path, name, data_files; rows are known by their columns."
            )
            raise Given(raw=None, label=f"The key {key} of a data set", where=given.where).wrong(
                "is not supported", fix=fix
            )
    if entry.get("split") not in (None, "train"):
        raise Given(raw=None, label=f"split: {entry['split']}", where=given.where).wrong(
            "is not supported", fix="Only the split train is read; name a file to read another."
        )
    files = entry.get("data_files")
    if files is not None:
        return list(files) if isinstance(files, list) else [files]
    if not entry.get("path"):
        raise given.wrong("has an entry without a path", fix="Write datasets: [{path: data.jsonl}].")
    return [f"{entry['path']}:{entry['name']}" if entry.get("name") else str(entry["path"])]


def in_directory(given: Given, directory: Given) -> Given:
    """Names looked up in LLaMA-Factory's ``dataset_dir``: by its dataset_info.json, else as files in it.

    Raises:
        RequestError: no such folder, an unreadable dataset_info.json, or a name that is not there.
    """
    folder = Path(directory.text).expanduser()
    if not folder.is_dir():
        raise directory.wrong("is not a folder", fix="Leave dataset_dir out, and name files in dataset.")
    info = _read_info(folder, directory)
    return given.with_raw([_look_up(name, folder, info, given) for name in read_list("dataset", given)])


def _read_info(folder: Path, directory: Given) -> dict[str, Any]:
    path = folder / INFO_FILE
    if not path.exists():
        return {}
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise directory.wrong(f"has a {INFO_FILE} that is not JSON", fix=f"Mend or delete {path}.") from cause
    return info if isinstance(info, dict) else {}


def _look_up(name: str, folder: Path, info: dict[str, Any], given: Given) -> str:
    entry = info.get(name)
    if isinstance(entry, dict):
        if "file_name" in entry:
            return str(folder / entry["file_name"])
        for key, prefix in (("hf_hub_url", "hf::"), ("ms_hub_url", "ms::")):
            if key in entry:
                return f"{prefix}{entry[key]}" + (f":{entry['subset']}" if entry.get("subset") else "")
        raise given.wrong(f"names {name}, which is neither a file nor on a hub", fix="Name files in dataset.")
    for candidate in (folder / name, Path(name).expanduser()):
        if candidate.exists():
            return str(candidate)
    raise given.wrong(
        f"names {name}, which is not in {folder}", fix=did_you_mean(name, info, "Name files in dataset instead.")
    )


def limit_rows(given: Given, limit: Given) -> Given:
    """LLaMA-Factory's ``max_samples``: at most so many rows of each data set, as the selector ``#N``.

    Raises:
        RequestError: not a whole number above 0.
    """
    if not limit.text.isdecimal() or int(limit.text) < 1:
        raise limit.wrong("is not a number of rows", fix="Write a whole number above 0.")
    names = read_list("dataset", given)
    return given.with_raw([name if "#" in Path(name).name else f"{name}#{int(limit.text)}" for name in names])
