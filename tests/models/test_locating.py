"""Names, folders and hub ids: what is found, and what is said where nothing can be."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from models_factory import change_json

from adaptft.artifacts import Artifact, write_artifact
from adaptft.cli.download import command as download
from adaptft.errors import AdaptftError, ModelError
from adaptft.models import fingerprint, locate, read_config


@pytest.fixture
def folder(tiny_qwen2: Path, tmp_path: Path) -> Path:
    """A copy of tiny-qwen2 that a test may spoil."""
    return Path(shutil.copytree(tiny_qwen2, tmp_path / "model"))


def _shard(folder: Path) -> None:
    """Spread the weights over two files with an index."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_complete_folder_is_taken_as_it_is(folder: Path) -> None:
    found = locate(str(folder))
    assert (found.name, found.path) == (str(folder), folder)


def test_a_folder_in_shards_is_complete(folder: Path) -> None:
    _shard(folder)
    assert locate(str(folder)).path == folder


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _shard_missing(folder: Path) -> None:
    _shard(folder)
    (folder / "model-2.safetensors").unlink()


def _shard_elsewhere(folder: Path) -> None:
    _shard(folder)
    shutil.copy(folder / "model-2.safetensors", folder.parent / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-2", "../other"))


def _shard_is_no_name(folder: Path) -> None:
    _shard(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 5}}')


def _cut_short(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.truncate(100_000)


def _lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")


def _no_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_text("hello")


def _only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _own_code(folder: Path) -> None:
    code = {"AutoConfig": "configuration_odd.OddConfig", "AutoModelForCausalLM": "o/r--modeling_odd.Odd"}
    change_json(folder / "config.json", model_type="odd", auto_map=code)


def _quantized(folder: Path) -> None:
    change_json(folder / "config.json", quantization_config={"quant_method": "awq"})


@pytest.mark.parametrize(
    ("spoil", "problem", "fix"),
    [
        (_no_config, "it has no config.json", "tokenizer.json"),
        (_broken_config, "Cannot read", "again"),
        (_no_weights, "no weights", "Copy or download"),
        (_shard_missing, "lacks 1 of 2 weight files that its index names: model-2.safetensors", "missing files"),
        (_shard_elsewhere, "names files outside its folder: ../other.safetensors", "again"),
        (_shard_is_no_name, "lacks 1 of 1 weight files that its index names: 5", "missing files"),
        (_cut_short, "is cut short: 100000 bytes of", "again"),
        (_lfs_pointer, "Git LFS pointer", "git lfs pull"),
        (_no_safetensors, "is not a safetensors file", "again"),
        (_only_pickle, "pytorch_model.bin, a pickle", "save_pretrained"),
        (_no_tokenizer, "has no tokenizer", "Copy the tokenizer"),
        (_own_code, "runs Python code of its own: configuration_odd.py, modeling_odd.py", "--trust_remote_code"),
        (_quantized, "is quantised (awq)", "adaptft infer, eval and serve"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    spoil: Callable[[Path], None], problem: str, fix: str, folder: Path
) -> None:
    spoil(folder)
    with pytest.raises(ModelError) as caught:
        locate(str(folder))
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert "\n" not in caught.value.problem + caught.value.fix


def test_code_that_is_trusted_is_warned_of_once_with_its_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _own_code(folder)
    for _ in range(2):
        locate(str(folder), trust_remote_code=True)
    assert capsys.readouterr().err == (
        f"Warning: {folder} runs Python code of its own, since --trust_remote_code is set: "
        "configuration_odd.py, modeling_odd.py.\n"
    )


def test_inference_may_take_a_quantised_folder(folder: Path) -> None:
    _quantized(folder)
    assert locate(str(folder), allow_quantized=True).path == folder


def test_an_adapter_in_place_of_a_model_names_its_base_and_the_commands(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"}')
    with pytest.raises(ModelError, match=r"is an adapter of Qwen/Qwen2\.5-7B-Instruct") as caught:
        locate(str(tmp_path))
    assert f"--model Qwen/Qwen2.5-7B-Instruct --adapters {tmp_path}" in caught.value.fix
    assert "adaptft export --format merged" in caught.value.fix


def test_an_export_in_place_of_a_base_names_its_base(folder: Path) -> None:
    _quantized(folder)
    artifact = Artifact(
        kind="export", adaptft="0.1.0", base_model="qwen-7b", base_path="/m", base_fingerprint="0", format="awq"
    )
    write_artifact(folder, artifact)
    with pytest.raises(ModelError, match="is an awq export of qwen-7b") as caught:
        locate(str(folder))
    assert "--model qwen-7b" in caught.value.fix
    assert "adaptft infer" in caught.value.fix


def test_a_folder_of_folders_names_the_model_in_it(folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        locate(str(folder.parent))
    assert str(folder) in caught.value.fix


@pytest.mark.parametrize(
    ("model", "problem", "fix"),
    [
        ("qwen7b", "There is no model 'qwen7b'", "Did you mean qwen-7b?"),
        ("zzzz", "There is no model 'zzzz'", "Aliases are"),
        ("./nothing", "no model folder or file ./nothing", "Check the path"),
        ("/no/such/folder", "no model folder or file /no/such/folder", "Check the path"),
        ("a/b/c", "no model folder or file a/b/c", "Check the path"),
        (".hidden/run", "no model folder or file .hidden/run", "Check the path"),
        ("my_runs/one", "no model folder or file my_runs/one", "--hub hf"),
        ("tests/nothere", "no model folder or file tests/nothere", "--hub hf"),
        ("missing.gguf", "no model folder or file missing.gguf", "Check the path"),
        ("", "There is no model ''", "Aliases are"),
    ],
)
def test_names_of_nothing_are_two_line_errors(
    model: str, problem: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    for look in (locate, read_config):
        with pytest.raises(ModelError) as caught:
            look(model)
        assert problem in caught.value.problem
        assert fix in caught.value.fix


@pytest.mark.parametrize("words", [("serve",), ("infer",), ("eval",), ("train", "--model"), ("plan", "--model")])
def test_every_command_says_first_that_a_folder_is_missing(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with socket.socket() as probe:  # a port that nobody on this machine serves on
        probe.bind(("127.0.0.1", 0))
        port = ["--port", str(probe.getsockname()[1])] if words == ("serve",) else []
    program = [sys.executable, "-m", "adaptft", words[0], *port, *words[1:], "out/nothere"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: There is no model folder or file out/nothere."), done.stderr


def test_a_hub_that_is_named_is_asked_where_a_folder_has_the_owners_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").mkdir()
    with pytest.raises(ModelError, match="Hugging Face is not asked for some/model"):
        locate("some/model", hub="hf")


def test_a_hub_that_is_offline_says_what_to_do() -> None:
    with pytest.raises(ModelError, match=r"HF_HUB_OFFLINE is set, so .* is not asked for Qwen/Qwen2\.5") as caught:
        locate("qwen-7b")
    for way in ("HF_HUB_OFFLINE=0", "adaptft download Qwen/Qwen2.5-7B-Instruct", "folder"):
        assert way in caught.value.fix


def test_a_hub_without_network_says_the_same(tmp_path: Path) -> None:
    program = (
        "from adaptft.models import locate\nfrom adaptft.errors import ModelError\n"
        "try: locate('some/model')\nexcept ModelError as e: print(e)"
    )
    offline = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **offline}, capture_output=True, text=True, timeout=120
    )
    assert run.stdout.startswith("Hugging Face cannot be reached for some/model"), run.stderr
    assert run.stdout.count("\n") == 2


def test_modelscope_without_its_package_names_the_pip_line() -> None:
    pytest.importorskip("adaptft.optional")
    from adaptft.optional import is_installed

    if is_installed("modelscope"):
        pytest.skip("modelscope is installed")
    with pytest.raises(AdaptftError) as caught:
        locate("qwen-7b", hub="modelscope")
    assert "modelscope" in caught.value.problem
    assert "pip install" in caught.value.fix


def test_the_catalogue_answers_offline() -> None:
    config = read_config("qwen-7b")
    assert config["hidden_size"] == 3584
    config["hidden_size"] = 1
    assert read_config("Qwen/Qwen2.5-7B-Instruct")["hidden_size"] == 3584


def test_a_folder_named_like_an_alias_counts_only_with_a_model_in_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen-7b").mkdir()
    assert read_config("qwen-7b")["hidden_size"] == 3584
    folder.rename(tmp_path / "qwen-14b")
    assert read_config("qwen-14b")["hidden_size"] == 256


def test_a_fingerprint_is_of_the_model_and_not_of_the_place(folder: Path, tiny_qwen2: Path, tiny_llama: Path) -> None:
    assert fingerprint(folder) == fingerprint(tiny_qwen2) != fingerprint(tiny_llama)
    change_json(folder / "config.json", transformers_version="9.9")
    assert fingerprint(folder) == fingerprint(tiny_qwen2)
    change_json(folder / "config.json", rope_theta=1.0)
    assert fingerprint(folder) != fingerprint(tiny_qwen2)


def test_download_prints_the_folder(folder: Path) -> None:
    result = CliRunner().invoke(download, [str(folder)], catch_exceptions=False)
    assert result.stdout == f"{folder}\n"
    assert "Qwen2ForCausalLM, 2.92 M parameters, float32" in result.stderr
