"""Local rows of a task in another form that people have them in, brought into the one that the harness reads.

The prompts stay the harness's own: what is made here are the columns of its data set on the hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
"""File suffix to the reader of ``datasets``."""

Row = dict[str, Any]
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class _Form:
    """Rows of the tasks that ``tasks`` matches with the columns ``has`` and without ``lacks``."""

    tasks: str
    has: frozenset[str]
    lacks: str
    convert: Callable[[Row], Row]


def in_harness_form(task: str, path: Path, folder: Path) -> Path:
    """``path``, or a file in ``folder`` with its rows as ``task`` reads them, where they come in another known form."""
    forms = [form for form in _FORMS if re.fullmatch(form.tasks, task)]
    if not forms or path.suffix not in READERS:
        return path
    import datasets

    folder.mkdir(parents=True, exist_ok=True)
    rows = datasets.load_dataset(
        READERS[path.suffix], data_files=str(path.absolute()), split="train", cache_dir=str(folder / "cache")
    )
    for form in forms:
        if form.has <= set(rows.column_names) and form.lacks not in rows.column_names:
            converted = folder / f"{task}-{path.stem}{path.suffix}"
            _WRITERS[READERS[path.suffix]](rows.map(form.convert), str(converted))
            return converted
    return path


def _hellaswag(row: Row) -> Row:
    """The published text form: ``Roof shingle removal: A man is sitting on a roof. he``."""
    label, separator, text = row["ctx"].partition(": ")
    return (
        {"activity_label": label, "ctx_a": text, "ctx_b": ""} if separator else _WITHOUT_LABEL | {"ctx_a": row["ctx"]}
    )


def _agieval(row: Row) -> Row:
    """AGIEval's own files (arXiv 2304.06364); the prompt is its zero-shot one, ``gold`` the place of the letter."""
    options, passage, question = list(row["options"]), row.get("passage") or "", row["question"]
    last = chr(ord("A") + len(options) - 1)
    if _CHINESE.search(question):
        query = f"{passage}问题：{question} 选项：{' '.join(options)}\n答案：从A到{last}, 我们应选择"
    else:
        query = f"{passage}Q: {question} Answer Choices: {' '.join(options)}\nA: Among A through {last}, the answer is"
    return {"query": query, "choices": options, "gold": [ord(letter) - ord("A") for letter in row["label"]]}


_WITHOUT_LABEL = {"activity_label": "", "ctx_b": ""}
_WRITERS: dict[str, Callable[[Any, str], Any]] = {
    "json": lambda rows, path: rows.to_json(path, force_ascii=False),
    "parquet": lambda rows, path: rows.to_parquet(path),
    "csv": lambda rows, path: rows.to_csv(path),
}
_FORMS = (
    _Form("hellaswag", frozenset({"ctx", "endings", "label"}), "ctx_a", _hellaswag),
    _Form("agieval_.*", frozenset({"question", "options", "label"}), "query", _agieval),
)
