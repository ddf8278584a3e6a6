"""Base, adapter and export on the same rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import models_factory
import pytest
from adapters_factory import artifact_of, random_adapter

from adaptft.artifacts import write_artifact
from adaptft.errors import DataError, MachineError, ModelError
from adaptft.evaluation import evaluate
from adaptft.exporting.merging import load_merged
from adaptft.facts import Cpu, HostMemory, Machine, Software
from adaptft.models import save_companions
from adaptft.requests import EvalRequest

MACHINE = Machine(
    gpus=(),
    cpu=Cpu(model_name="a CPU", architecture="x86_64", logical_cores=2, physical_cores=2, usable_cores=2),
    memory=HostMemory(total_bytes=2**34, available_bytes=2**34),
    software=Software(python="3.11"),
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    texts = [{"query": f"What is {i} plus {i}?", "response": f"It is {2 * i}. " * (1 + i % 5)} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return str(path)


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_adapter(tiny_qwen2, tmp_path_factory.mktemp("run") / "adapter")


def test_models_stand_side_by_side_on_the_same_rows(
    tiny_qwen2: Path, adapter: Path, rows: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    load_merged(tiny_qwen2, adapter, dtype="fp32").save_pretrained(tmp_path / "merged")
    save_companions(tiny_qwen2, tmp_path / "merged")
    capfd.readouterr()
    steps: list[str] = []
    report = evaluate(
        EvalRequest(
            model=str(tiny_qwen2), adapters=(str(adapter),), exports=(str(tmp_path / "merged"),), dataset=(rows,)
        ),
        MACHINE,
        progress=steps.append,
    )
    base, adapted, merged = report.scores
    assert [score.name for score in report.scores] == [str(tiny_qwen2), str(adapter), str(tmp_path / "merged")]
    assert {(score.num_rows, score.num_tokens) for score in report.scores} == {(20, base.num_tokens)}
    assert merged.loss == pytest.approx(adapted.loss, rel=1e-4)
    assert abs(adapted.loss - base.loss) > 0.001
    assert report.dataset == (rows,)
    assert len(steps) == 4
    assert capfd.readouterr() == ("", "")


def test_an_adapter_as_the_model_means_its_base_and_itself(tiny_qwen2: Path, adapter: Path, rows: str) -> None:
    report = evaluate(EvalRequest(model=str(adapter), dataset=(rows,), max_rows=3), MACHINE)
    assert [score.path for score in report.scores] == [str(tiny_qwen2), str(adapter)]
    assert report.scores[0].num_rows == 3
    assert "The first 3 of 20 rows" in report.notes[-1]


def test_the_system_prompt_of_the_training_is_used_and_said(tiny_qwen2: Path, rows: str, tmp_path: Path) -> None:
    run = random_adapter(tiny_qwen2, tmp_path / "run")
    write_artifact(run, artifact_of(tiny_qwen2, system="Answer briefly."))
    request = EvalRequest(model=str(run), dataset=(rows,), max_rows=2)
    assert "'Answer briefly.'" in evaluate(request, MACHINE).notes[0]


def test_long_rows_are_left_out_and_counted(tiny_qwen2: Path, rows: str) -> None:
    report = evaluate(EvalRequest(model=str(tiny_qwen2), dataset=(rows,), max_length=80), MACHINE)
    assert report.scores[0].num_rows < 20
    assert "longer than max_length 80" in report.notes[0]


def test_another_tokenizer_cannot_be_compared(tiny_qwen2: Path, rows: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_qwen2, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"][-1]["content"] = "<another>"
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="another tokenizer"):
        evaluate(EvalRequest(model=str(tiny_qwen2), exports=(str(other),), dataset=(rows,)), MACHINE)


def test_an_adapter_of_another_base_is_refused(adapter: Path, rows: str, tmp_path: Path) -> None:
    other = models_factory.build("tiny-qwen2", tmp_path / "other", rope_theta=7.0)
    with pytest.raises(ModelError, match=r"was trained on tiny-qwen2; .*other is another model"):
        evaluate(EvalRequest(model=str(other), adapters=(str(adapter),), dataset=(rows,)), MACHINE)


def test_folders_go_to_the_option_they_are_for(tiny_qwen2: Path, adapter: Path, rows: str) -> None:
    with pytest.raises(ModelError, match="holds no adapter"):
        evaluate(EvalRequest(model=str(tiny_qwen2), adapters=(str(tiny_qwen2),), dataset=(rows,)), MACHINE)
    with pytest.raises(ModelError, match="holds an adapter, not an export"):
        evaluate(EvalRequest(model=str(tiny_qwen2), exports=(str(adapter),), dataset=(rows,)), MACHINE)


def test_no_row_left_is_refused(tiny_qwen2: Path, rows: str) -> None:
    with pytest.raises(DataError):
        evaluate(EvalRequest(model=str(tiny_qwen2), dataset=(rows,), max_length=4), MACHINE)


def test_a_gpu_that_is_not_there_is_refused(tiny_qwen2: Path, rows: str) -> None:
    with pytest.raises(MachineError, match="no GPU"):
        evaluate(EvalRequest(model=str(tiny_qwen2), dataset=(rows,), device="cuda"), MACHINE)
