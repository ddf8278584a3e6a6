"""Tasks of lm-evaluation-harness (gsm8k, hellaswag ...) on models in memory, from the hub or from local files.

Local files go in by the harness's own door: a task of its YAML form that includes the task meant and names other
files. So prompts, filters and metrics are those that others publish.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptft import optional
from adaptft.errors import DataError, RequestError
from adaptft.evaluation.task_rows import READERS, in_harness_form
from adaptft.reports import TaskScore

_TEST, _TRAIN = ("test", "validation", "val", "dev"), ("train", "training")
_SEED = 1234


@dataclass(frozen=True, slots=True)
class TaskWish:
    """A task of the harness; ``data`` is a file of test rows, or a folder with test.jsonl and train.jsonl."""

    name: str
    data: Path | None = None

    @property
    def listed_as(self) -> str:
        """Its name in the harness: local data makes it another task."""
        return f"{self.name}_local" if self.data else self.name


def parse_tasks(texts: Sequence[str]) -> tuple[TaskWish, ...]:
    """``gsm8k`` or ``gsm8k=FILE`` each.

    Raises:
        RequestError: a task twice, or a part is missing.
        DataError: the file or the folder is not there.
    """
    wishes: dict[str, TaskWish] = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not name or (separator and not path):
            raise RequestError(f"--tasks {text} is no NAME or NAME=FILE.", fix="Example: --tasks gsm8k=test.jsonl")
        if name in wishes:
            raise RequestError(f"The task {name} is named twice.", fix="Name each task once.")
        if path and not Path(path).exists():
            raise DataError(f"There is no file or folder {path} for the task {name}.", fix="Check the path.")
        wishes[name] = TaskWish(name, Path(path) if path else None)
    return tuple(wishes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """The tasks to run, in the harness's own words; ready once for all models."""

    wishes: tuple[TaskWish, ...]
    manager: Any
    num_fewshot: int | None
    limit: int | None
    batch_size: int
    system: str | None

    def scores(self, model: Any, tokenizer: Any, name: str) -> tuple[TaskScore, ...]:
        """Every metric of every task for one model, called ``name`` in the scores.

        Raises:
            DataError: the data of a task cannot be had, or is not of the form that the task reads.
        """
        import lm_eval
        from lm_eval.models.huggingface import HFLM

        model.generation_config.max_new_tokens = None  # it would go before the length that a task asks for
        has_template = bool(getattr(tokenizer, "chat_template", None))
        try:
            found = lm_eval.simple_evaluate(
                model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=self.batch_size),
                tasks=[wish.listed_as for wish in self.wishes],
                task_manager=self.manager,
                num_fewshot=self.num_fewshot,
                limit=self.limit,
                apply_chat_template=has_template,
                system_instruction=self.system if has_template else None,
                bootstrap_iters=0,
                log_samples=False,
                random_seed=_SEED,
                verbosity="ERROR",
            )
        except (OSError, ValueError, KeyError, ConnectionError) as cause:
            raise _no_data(self.wishes, cause) from cause
        return tuple(_scores(name, found, {wish.listed_as: wish.name for wish in self.wishes}))


@contextmanager
def harness(
    texts: Sequence[str], *, num_fewshot: int | None, limit: int | None, batch_size: int | None, system: str | None
) -> Iterator[Harness]:
    """The harness with the tasks that ``texts`` name (as ``parse_tasks`` reads them).

    Raises:
        MissingPackage: lm_eval is not installed.
        RequestError: there is no such task.
    """
    wishes = parse_tasks(texts)
    optional.require("lm_eval", purpose="--tasks")
    from lm_eval.tasks import TaskManager

    known = TaskManager()
    _check_known(wishes, known)
    with tempfile.TemporaryDirectory(prefix="adaptft-tasks-") as folder:
        for wish in wishes:
            if wish.data is not None:
                task = json.dumps(_local_task(wish, Path(known.task_index[wish.name].yaml_path), Path(folder)))
                (Path(folder) / f"{wish.listed_as}.yaml").write_text(task, encoding="utf-8")
        needs_defaults = any(wish.data is None for wish in wishes)
        manager = TaskManager(include_path=folder, include_defaults=needs_defaults)
        yield Harness(
            wishes=wishes,
            manager=manager,
            num_fewshot=num_fewshot,
            limit=limit,
            batch_size=batch_size or 1,
            system=system,
        )


def _check_known(wishes: tuple[TaskWish, ...], manager: Any) -> None:
    from difflib import get_close_matches

    for wish in wishes:
        if wish.name not in manager.task_index:
            near = get_close_matches(wish.name, list(manager.task_index), n=3)
            raise RequestError(
                f"lm-evaluation-harness has no task {wish.name}.",
                fix=f"Did you mean {', '.join(near)}?" if near else "`lm-eval ls tasks` lists all.",
            )
        if wish.data is not None and wish.name in (*manager.all_groups, *manager.all_tags):
            raise RequestError(f"{wish.name} is a group of tasks, which cannot share one file.", fix="Name one task.")


def _local_task(wish: TaskWish, included: Path, folder: Path) -> dict[str, Any]:
    """The task in the harness's YAML form (JSON is YAML), with its rows from local files; ``folder`` is scratch."""
    files = _split_files(wish)
    suffixes = {path.suffix for path in files.values()}
    if len(suffixes) != 1 or not suffixes <= READERS.keys():
        raise DataError(
            f"{wish.data} is of a form that tasks do not read.", fix=f"Give one of {', '.join(READERS)} for all parts."
        )
    files = {split: _readable(wish, path, folder) for split, path in files.items()}
    return {
        "include": str(included),
        "task": wish.listed_as,
        "dataset_path": READERS[suffixes.pop()],
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(path.absolute()) for split, path in files.items()}},
        "test_split": "test",
        "validation_split": None,
        "training_split": "train" if "train" in files else None,
        "fewshot_split": "train" if "train" in files else "test",
    }


def _readable(wish: TaskWish, path: Path, folder: Path) -> Path:
    try:
        return in_harness_form(wish.name, path, folder)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as cause:
        raise _no_data((wish,), cause) from cause


def _split_files(wish: TaskWish) -> dict[str, Path]:
    data = wish.data
    assert data is not None
    if data.is_file():
        return {"test": data}
    parts = {"test": _first(data, _TEST), "train": _first(data, _TRAIN)}
    if parts["test"] is None:
        raise DataError(f"{data} has no test.jsonl (or .json, .parquet, .csv).", fix="Name a file: --tasks NAME=FILE")
    return {split: path for split, path in parts.items() if path is not None}


def _first(folder: Path, stems: tuple[str, ...]) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for stem in stems for suffix in READERS)
    return next((path for path in candidates if path.is_file()), None)


def _scores(model: str, found: Any, names: dict[str, str]) -> Iterator[TaskScore]:
    counts = found.get("n-samples", {})
    for task, values in found["results"].items():
        for key, value in values.items():
            metric, _, part = key.partition(",")
            if not isinstance(value, int | float) or metric.endswith("_stderr") or not part:
                continue
            num_rows = counts.get(task, {}).get("effective", 0)
            shown = metric if part == "none" else f"{metric} ({part})"
            yield TaskScore(
                model=model, task=names.get(task, task), metric=shown, value=float(value), num_rows=num_rows
            )


def _no_data(wishes: tuple[TaskWish, ...], cause: Exception) -> DataError:
    words = " ".join(str(cause).split())[:200] or type(cause).__name__
    remote = [wish.name for wish in wishes if wish.data is None]
    fix = f"Give local files: --tasks {remote[0]}=test.jsonl" if remote else "Check that the columns are the task's."
    return DataError(f"A task's data cannot be used: {words}", fix=fix)
