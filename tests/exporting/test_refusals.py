"""What cannot be exported is refused in two lines, before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from adapters_factory import artifact_of, random_adapter
from exports import export_here

from adaptft.artifacts import write_artifact
from adaptft.errors import AdaptftError, DataError, ExportError, ModelError, OutputError, RequestError

Options = dict[str, Any]


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_adapter(tiny_qwen2, tmp_path_factory.mktemp("run") / "adapter")


def nothing_named(adapter: Path, base: Path, folder: Path) -> Options:
    return {}


def no_adapter(adapter: Path, base: Path, folder: Path) -> Options:
    return {"adapters": str(base)}


def base_is_gone(adapter: Path, base: Path, folder: Path) -> Options:
    shutil.copytree(adapter, folder / "run")
    gone = str(folder / "gone" / "model")
    write_artifact(folder / "run", artifact_of(base, base_model=gone, base_path=gone))
    return {"adapters": str(folder / "run")}


def base_is_not_named(adapter: Path, base: Path, folder: Path) -> Options:
    shutil.copytree(adapter, folder / "run")
    (folder / "run" / "adaptft.json").unlink()
    config = json.loads((folder / "run" / "adapter_config.json").read_text())
    (folder / "run" / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    return {"adapters": str(folder / "run")}


def another_base(adapter: Path, base: Path, folder: Path) -> Options:
    shutil.copytree(base, folder / "changed")
    config = json.loads((folder / "changed" / "config.json").read_text())
    (folder / "changed" / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    return {"adapters": str(adapter), "model": str(folder / "changed")}


def base_of_other_shapes(adapter: Path, base: Path, folder: Path) -> Options:
    shutil.copytree(base, folder / "wider")
    config = json.loads((folder / "wider" / "config.json").read_text())
    (folder / "wider" / "config.json").write_text(json.dumps(config | {"hidden_size": 2 * config["hidden_size"]}))
    return {"adapters": str(adapter), "model": str(folder / "wider")}


def an_export(adapter: Path, base: Path, folder: Path) -> Options:
    shutil.copytree(base, folder / "exported")
    write_artifact(folder / "exported", artifact_of(base, kind="export", format="fp8"))
    return {"model": str(folder / "exported")}


def folder_with_something(adapter: Path, base: Path, folder: Path) -> Options:
    (folder / "out").mkdir()
    (folder / "out" / "notes.txt").write_text("mine")
    return {"adapters": str(adapter), "output_dir": str(folder / "out"), "overwrite_output_dir": True}


def folder_with_an_export(adapter: Path, base: Path, folder: Path) -> Options:
    (folder / "out").mkdir()
    write_artifact(folder / "out", artifact_of(base, kind="export", format="fp8"))
    return {"adapters": str(adapter), "output_dir": str(folder / "out")}


def folder_of_the_base(adapter: Path, base: Path, folder: Path) -> Options:
    return {"adapters": str(adapter), "output_dir": str(base), "overwrite_output_dir": True}


def rows_that_are_not_there(adapter: Path, base: Path, folder: Path) -> Options:
    return {"adapters": str(adapter), "output_dir": str(folder / "out"), "dataset": (str(folder / "no.jsonl"),)}


def no_weights(adapter: Path, base: Path, folder: Path) -> Options:
    (folder / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, folder / "model" / name)
    return {"model": str(folder / "model")}


CASES: dict[Callable[[Path, Path, Path], Options], tuple[type[AdaptftError], str, str]] = {
    nothing_named: (RequestError, "neither an adapter nor a model", "--adapters"),
    no_adapter: (ExportError, "holds no adapter", "--model"),
    base_is_gone: (ExportError, "is not found", "--model"),
    base_is_not_named: (ExportError, "does not say which model", "--model"),
    another_base: (ExportError, "changed is another model (fingerprint", "tiny-qwen2"),
    base_of_other_shapes: (ExportError, "wider's is 512 x 512", "tiny-qwen2"),
    an_export: (ExportError, "is an export already (format fp8)", "--model tiny-qwen2"),
    folder_with_something: (OutputError, "is no export", "--output_dir"),
    folder_with_an_export: (OutputError, "holds an export already (format fp8)", "--overwrite_output_dir"),
    folder_of_the_base: (OutputError, "holds the model that is exported", "--output_dir"),
    rows_that_are_not_there: (DataError, "no.jsonl", ""),
    no_weights: (ModelError, "weights", ""),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.replace("_", " "))
def test_refused_with_the_way_out(
    case: Callable[[Path, Path, Path], Options], adapter: Path, tiny_qwen2: Path, tmp_path: Path
) -> None:
    kind, problem, fix = CASES[case]
    options = case(adapter, tiny_qwen2, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind) as refusal:
        export_here(format="merged", **options)
    assert problem in refusal.value.problem
    assert fix in refusal.value.fix
    assert len(str(refusal.value).splitlines()) == 2
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"


def test_an_export_is_replaced_when_asked_for(adapter: Path, tiny_qwen2: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.txt").write_text("of the old export")
    write_artifact(out, artifact_of(tiny_qwen2, kind="export", format="fp8"))
    export_here(format="merged", adapters=str(adapter), output_dir=str(out), overwrite_output_dir=True)
    assert not (out / "old.txt").exists()
    assert (out / "model.safetensors").exists()
    assert list(tmp_path.iterdir()) == [out]


def test_an_adapter_given_as_the_model_is_understood(adapter: Path, tmp_path: Path) -> None:
    plan, report, _ = export_here(format="merged", model=str(adapter), output_dir=str(tmp_path / "out"))
    assert plan.model.name.endswith("tiny-qwen2")
    assert report.gate.failures == ()


def test_an_adapter_of_another_program_keeps_its_chat_template(tiny_qwen2: Path, tmp_path: Path) -> None:
    run = random_adapter(tiny_qwen2, tmp_path / "run", is_ours=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny_qwen2 / name, run / name)
    template = (tiny_qwen2 / "chat_template.jinja").read_text() + "{# changed #}"
    (run / "chat_template.jinja").write_text(template)
    _, _, folder = export_here(format="merged", adapters=str(run))
    assert (folder / "chat_template.jinja").read_text() == template
    assert json.loads((folder / "generation_config.json").read_text())["do_sample"] is False
