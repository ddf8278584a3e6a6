"""Rows of a task in another common form become those that the harness reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets")

from adaptft.evaluation.task_rows import in_harness_form  # noqa: E402

TEXT_FORM = {"ctx": "Roof shingle removal: A man is sitting: on a roof. he", "endings": ["a", "b"], "label": 1}
HUB_FORM = {"ctx_a": "A man.", "ctx_b": "he", "activity_label": "Roof", "endings": ["a", "b"], "label": "1"}
ENGLISH = {"passage": None, "question": "How many?", "options": ["(A)1", "(B)2", "(C)3"], "label": "B"}
CHINESE = {"passage": "文。", "question": "几个?", "options": ["(A)1", "(B)2"], "label": "AB"}


def converted(task: str, row: dict, folder: Path) -> tuple[Path, dict]:
    path = folder / "test.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    found = in_harness_form(task, path, folder / "scratch")
    return found, json.loads(found.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("task", "row", "wanted"),
    [
        (
            "hellaswag",
            TEXT_FORM,
            {"activity_label": "Roof shingle removal", "ctx_a": "A man is sitting: on a roof. he", "ctx_b": ""},
        ),
        ("hellaswag", TEXT_FORM | {"ctx": "No label."}, {"activity_label": "", "ctx_a": "No label.", "ctx_b": ""}),
        (
            "agieval_aqua_rat",
            ENGLISH,
            {
                "query": "Q: How many? Answer Choices: (A)1 (B)2 (C)3\nA: Among A through C, the answer is",
                "choices": ["(A)1", "(B)2", "(C)3"],
                "gold": [1],
            },
        ),
        (
            "agieval_gaokao_physics",
            CHINESE,
            {"query": "文。问题：几个? 选项：(A)1 (B)2\n答案：从A到B, 我们应选择", "gold": [0, 1]},
        ),
    ],
)
def test_other_forms_get_the_columns_of_the_hub(task: str, row: dict, wanted: dict, tmp_path: Path) -> None:
    path, found = converted(task, row, tmp_path)
    assert path.parent == tmp_path / "scratch"
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize(("task", "row"), [("hellaswag", HUB_FORM), ("gsm8k", TEXT_FORM), ("hellaswag", {"x": 1})])
def test_what_is_right_already_or_not_known_stays_the_file_it_is(task: str, row: dict, tmp_path: Path) -> None:
    assert converted(task, row, tmp_path)[0] == tmp_path / "test.jsonl"
