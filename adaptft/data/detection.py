"""Which dialect a source speaks, decided by its columns: the union of the keys of its first rows."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adaptft.data.conversation import printable
from adaptft.data.messages import Tags
from adaptft.data.other_tasks import refuse_labels, refuse_other_tasks
from adaptft.errors import DataError

Kind = Literal["messages", "exchange", "text"]
NUM_PROBED_ROWS = 200

_ANSWERS = (
    "output", "response", "completion", "answer", "solution", "target", "targets",
    "输出", "答案", "回答", "回复", "答复", "應答", "应答", "輸出", "回覆",
)  # fmt: skip
_QUESTIONS = ("question", "问题", "提问", "問題", "提問")


@dataclass(frozen=True, slots=True)
class Form:
    """A dialect's columns: those it must have (the first present of each), and those it may have."""

    name: str
    kind: Kind
    required: tuple[tuple[str, tuple[str, ...]], ...]
    optional: tuple[tuple[str, tuple[str, ...]], ...] = ()


_AROUND = (
    ("system", ("system", "system_prompt", "系统提示词", "系统提示", "系统", "系統提示", "系統")),
    ("tools", ("tools", "functions")),
)
_EXCHANGE = (*_AROUND, ("history", ("history", "历史")), ("input", ("input", "context", "输入", "輸入")))

# Order decides: a row with messages is a conversation whatever else it has, and `text` beside
# instruction and output (the original Alpaca) is a copy of them and not a plain text.
FORMS: tuple[Form, ...] = (
    Form("OpenAI messages", "messages", (("messages", ("messages",)),), _AROUND),
    Form("ShareGPT", "messages", (("messages", ("conversations", "conversation")),), _AROUND),
    Form("Alpaca", "exchange", (("prompt", ("instruction", "指令")), ("answer", _ANSWERS)), _EXCHANGE),
    Form("prompt/completion", "exchange", (("prompt", ("prompt",)), ("answer", ("completion",))), _EXCHANGE),
    Form("query/response", "exchange", (("prompt", ("query",)), ("answer", ("response", *_ANSWERS))), _EXCHANGE),
    Form("question/answer", "exchange", (("prompt", _QUESTIONS), ("answer", ("answer", *_ANSWERS))), _EXCHANGE),
    Form("problem/solution", "exchange", (("prompt", ("problem",)), ("answer", ("solution", *_ANSWERS))), _EXCHANGE),
    Form("prompt/response", "exchange", (("prompt", ("prompt",)), ("answer", ("response", *_ANSWERS))), _EXCHANGE[:3]),
    Form("input/output", "exchange", (("prompt", ("input", "输入", "輸入")), ("answer", _ANSWERS)), _EXCHANGE[:3]),
    Form("问/答", "exchange", (("prompt", ("问", "問")), ("answer", ("答",))), _EXCHANGE),
    Form("plain text", "text", (("text", ("text", "content", "文本", "正文", "内容", "內容")),)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A verdict: how rows of one source are read. ``columns`` maps roles to the source's column names."""

    name: str
    kind: Kind
    columns: dict[str, str]
    tags: Tags = field(default_factory=Tags)
    ignored: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The dialect in words: "Alpaca (instruction, input, output)"."""
        ignored = f"; ignored: {', '.join(self.ignored[:8])}" if self.ignored else ""
        return printable(f"{self.name} ({', '.join(self.columns.values())}{ignored})")


def detect(
    rows: Iterable[Any], where: str, *, renames: Mapping[str, str] | None = None, tags: Tags | None = None
) -> Dialect:
    """The dialect of ``rows`` (the first of a source; those that are no objects do not count).

    Args:
        where: the source's name in errors.
        renames: registered names: a dialect's column to the source's own ("instruction": "ask"). The form
            that has most of them is taken, then the first that half of the rows have.

    Raises:
        DataError: no dialect has these columns, or they are those of another task.
    """
    objects = [row for row in rows if isinstance(row, dict)]
    own = dict(renames or {})
    keys = list(dict.fromkeys(str(key) for row in objects for key in row))
    known = {own_name: name for name, own_name in own.items()}
    by_name = {known.get(key, key): key for key in keys}
    refuse_other_tasks(by_name, objects, own, where)
    matches = [(form, columns) for form in FORMS if (columns := _match(form, by_name)) is not None]
    if matches:
        form, columns = max(matches, key=lambda match: _standing(match[1], known, objects, match[0]))
        ignored = tuple(key for key in keys if key not in columns.values())
        if form.kind == "text":
            refuse_labels(columns["text"], ignored, own, where)
        name = _messages_name(objects, columns) if form.kind == "messages" else form.name
        return Dialect(name=name, kind=form.kind, columns=columns, tags=tags or Tags(), ignored=ignored)
    if "instruction" in own and own["instruction"] in keys:  # registered as LLaMA-Factory's pre-training rows
        return Dialect(name="plain text", kind="text", columns={"text": own["instruction"]})
    if missing := [own_name for own_name in own.values() if own_name not in keys]:
        raise DataError(
            f"{where} lacks the column {', '.join(missing)}, which columns (or dataset_info.json) names.",
            fix=f"Its columns are {', '.join(keys) or '(none)'}.",
        )
    raise _unknown(keys, where)


def column_names() -> tuple[str, ...]:
    """Every column name that some form knows."""
    roles = [role for form in FORMS for role in (*form.required, *form.optional)]
    return tuple(dict.fromkeys(name for _, names in roles for name in names))


def speaks(keys: Iterable[str]) -> bool:
    """True where a row with these columns would be read."""
    by_name = {key: key for key in keys}
    return any(_match(form, by_name) is not None for form in FORMS)


def _standing(
    columns: Mapping[str, str], known: Mapping[str, str], rows: list[dict[str, Any]], form: Form
) -> tuple[int, int]:
    """How well a form fits: renamed columns that it has, then rows that it can read; from half of them on as good
    as all, so that a few odd rows decide nothing."""
    needed = {columns[role] for role, _ in form.required}
    num_read = sum(needed <= row.keys() for row in rows)
    return len(known.keys() & set(columns.values())), min(2 * num_read, len(rows))


def _match(form: Form, by_name: Mapping[str, str]) -> dict[str, str] | None:
    columns: dict[str, str] = {}
    for role, names in form.required:
        found = next((name for name in names if name in by_name), None)
        if found is None:
            return None
        columns[role] = by_name[found]
    for role, names in form.optional:
        found = next((name for name in names if name in by_name and by_name[name] not in columns.values()), None)
        if found is not None:
            columns[role] = by_name[found]
    return columns


def _messages_name(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> str:
    """The family that the messages themselves belong to, whatever their column is called."""
    lists = (row.get(columns["messages"]) for row in rows)
    keys = {
        key for messages in lists if isinstance(messages, list) for m in messages if isinstance(m, dict) for key in m
    }
    if {"from", "value"} <= keys:
        return "ShareGPT"
    return "ms-swift pairs" if {"human", "assistant"} <= keys else "OpenAI messages"


def _example(keys: list[str], names: list[str]) -> dict[str, str]:
    """A mapping to paste: the nearest known names; the other columns are taken as question and answer."""
    near = {key: hit[0] for key in keys if (hit := difflib.get_close_matches(key.lower(), names, 1, 0.75))}
    answers = {name for form in FORMS for role, columns in form.required if role == "answer" for name in columns}
    has_answer = bool(answers & set(near.values()))
    missing = ["response"] if near and not has_answer else ["query"] if near else ["query", "response"]
    others = [key for key in keys if key not in near]
    return dict([*near.items(), *zip(others, missing, strict=False)][:2])


def _unknown(keys: list[str], where: str) -> DataError:
    names = sorted({name for form in FORMS for _, columns in form.required for name in columns})
    nearest = [
        f"{printable(key)} -> {hit[0]}"
        for key in keys[:20]
        if (hit := difflib.get_close_matches(key.lower(), names, 1, 0.75))
    ]
    known = "; ".join(
        f"{form.name}: {' + '.join(columns[0] for _, columns in form.required)}" for form in FORMS
    )  # fmt: skip
    example = json.dumps(_example(keys, names), ensure_ascii=False)
    hint = f"Say what they are: --columns '{example}'{' (a guess)' if nearest else ''}. "
    return DataError(
        f"{where} has the columns {printable(', '.join(keys[:20])) or '(none)'}, which no known form of rows has.",
        fix=f"{hint}Known forms: {known}.",
    )
