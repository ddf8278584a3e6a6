"""Tasks of lm-evaluation-harness on local rows: named, described to the harness, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaptft.errors import DataError, RequestError
from adaptft.evaluation import evaluate
from adaptft.evaluation.tasks import TaskWish, _local_task, parse_tasks
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.requests import EvalRequest
from adaptft.units import GiB

HERE = Machine(
    gpus=(),
    cpu=Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2),
    memory=HostMemory(total_bytes=16 * GiB, available_bytes=12 * GiB),
    software=Software(python="3.11"),
)


def write_rows(path: Path) -> Path:
    """Rows of hellaswag's form."""
    row = {"activity_label": "Cooking", "ctx_a": "She cuts the onions.", "ctx_b": "then she", "label": "1"}
    endings = ["flies away.", "puts them into the pan.", "reads a map.", "sings to a tree."]
    rows = [{**row, "ind": number, "endings": endings} for number in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tasks_are_names_with_or_without_their_own_rows(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl")
    assert parse_tasks(["gsm8k", f"hellaswag={file}"]) == (TaskWish("gsm8k"), TaskWish("hellaswag", file))


@pytest.mark.parametrize(
    ("texts", "kind", "said"),
    [
        (["gsm8k="], RequestError, "is no NAME or NAME=FILE"),
        (["=x"], RequestError, "is no NAME or NAME=FILE"),
        (["gsm8k", "gsm8k"], RequestError, "named twice"),
        (["gsm8k=nowhere.jsonl"], DataError, "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        parse_tasks(texts)


def test_a_folder_gives_examples_from_its_training_rows_and_a_file_from_itself(tmp_path: Path) -> None:
    test, train = write_rows(tmp_path / "test.jsonl"), write_rows(tmp_path / "train.jsonl")
    task = _local_task(TaskWish("hellaswag", tmp_path), Path("/h.yaml"), tmp_path)
    assert task["dataset_kwargs"] == {"data_files": {"test": str(test), "train": str(train)}}
    assert (task["include"], task["fewshot_split"]) == ("/h.yaml", "train")
    assert _local_task(TaskWish("hellaswag", test), Path("/h.yaml"), tmp_path)["fewshot_split"] == "test"
    with pytest.raises(DataError, match=r"no test\.jsonl"):
        _local_task(TaskWish("hellaswag", tmp_path.parent), Path("/h.yaml"), tmp_path)
    odd = tmp_path / "rows.xlsx"
    odd.write_bytes(b"")
    with pytest.raises(DataError, match="form that tasks do not read"):
        _local_task(TaskWish("hellaswag", odd), Path("/h.yaml"), tmp_path)


@pytest.mark.slow
def test_models_are_scored_side_by_side_on_local_rows(tiny_qwen2: Path, tiny_llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    file = write_rows(tmp_path / "rows.jsonl")
    report = evaluate(
        EvalRequest(
            model=str(tiny_qwen2), exports=(str(tiny_llama),), tasks=(f"hellaswag={file}",), num_fewshot=0, max_rows=2
        ),
        HERE,
    )
    found = {(score.model, score.metric): score for score in report.tasks}
    assert set(found) == {(str(m), metric) for m in (tiny_qwen2, tiny_llama) for metric in ("acc", "acc_norm")}
    assert all(score.task == "hellaswag" and score.num_rows == 2 for score in report.tasks)
    assert all(score.value in (0.0, 1.0) for score in report.tasks), "both rows are the same"
    assert report.scores == ()

    with pytest.raises(RequestError, match="no task hellaswagg"):
        evaluate(EvalRequest(model=str(tiny_qwen2), tasks=("hellaswagg",)), HERE)
    with pytest.raises(RequestError, match="brings its own rows"):
        evaluate(EvalRequest(model=str(tiny_qwen2), tasks=("hellaswag",), dataset=("x.jsonl",)), HERE)
