"""Data as other frameworks name it: Axolotl's list of mappings, LLaMA-Factory's dataset_dir and max_samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptft.parsing.given import Given
from adaptft.parsing.lists import read_list
from adaptft.parsing.nearest import did_you_mean

# keys of an Axolotl entry that adaptft finds out by itself from the columns
_FOUND_OUT = frozenset(
    {
        "type",
        "ds_type",
        "conversation",
        "chat_template",
        "field_messages",
        "message_property_mappings",
        "message_field_role",
        "message_field_content",
        "roles",
    }
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
    """Names below LLaMA-Factory's ``dataset_dir``; reading the data then finds them in its dataset_info.json.

    Raises:
        RequestError: no such folder.
    """
    folder = Path(directory.text).expanduser()
    if not folder.is_dir():
        raise directory.wrong("is not a folder", fix="Leave dataset_dir out, and name files in dataset.")
    names = read_list("dataset", given)
    return given.with_raw([name if "::" in name or _exists(name) else str(folder / name) for name in names])


def _exists(name: str) -> bool:
    return Path(name.split("#")[0]).expanduser().exists()


def limit_rows(given: Given, limit: Given) -> Given:
    """LLaMA-Factory's ``max_samples``: at most so many rows of each data set, as the selector ``#N``.

    Raises:
        RequestError: not a whole number above 0.
    """
    if not limit.text.isdecimal() or int(limit.text) < 1:
        raise limit.wrong("is not a number of rows", fix="Write a whole number above 0.")
    names = read_list("dataset", given)
    return given.with_raw([name if "#" in Path(name).name else f"{name}#{int(limit.text)}" for name in names])
