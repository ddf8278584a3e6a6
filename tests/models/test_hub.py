"""Downloads through the real client from a hub on this machine, in a process of its own that may use the network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, serve
from models_factory import change_json

PROGRAM = """
import sys
from adaptft.errors import AdaptftError
from adaptft.models import locate
try:
    found = locate(sys.argv[1], revision=sys.argv[2] or None, trust_remote_code=sys.argv[3] == "trust")
    print(found.path)
    print(*sorted(path.name for path in found.path.iterdir()))
except AdaptftError as error:
    print(error)
"""
HEADER = b'{"x":{"dtype":"U8","shape":[31457280],"data_offsets":[0,31457280]}}'
LARGE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(range(256)) * (30 * 2**20 // 256)
Locate = Callable[..., list[str]]


@pytest.fixture
def asked() -> list[str]:
    """Paths that the hub was asked for."""
    return []


@pytest.fixture
def find(tiny_qwen2: Path, tmp_path: Path, asked: list[str]) -> Iterator[Locate]:
    """``locate`` in a new process with a hub that has some/model, some/code and some/pickles; gives its lines."""
    code = Path(shutil.copytree(tiny_qwen2, tmp_path / "code"))
    change_json(code / "config.json", model_type="odd", auto_map={"AutoConfig": "configuration_odd.OddConfig"})
    (code / "configuration_odd.py").write_text("raise SystemExit('must not run')\n")
    pickles = Path(shutil.copytree(tiny_qwen2, tmp_path / "pickles"))
    (pickles / "model.safetensors").rename(pickles / "pytorch_model.bin")
    (tmp_path / "model").mkdir()
    model = Path(shutil.copytree(tiny_qwen2, tmp_path / "model", dirs_exist_ok=True))
    (model / "consolidated.safetensors").write_bytes(b"a second copy that is not needed")
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}')
    large = Path(shutil.copytree(model, tmp_path / "large"))
    (large / "model-2.safetensors").write_bytes(LARGE)
    evil = Path(shutil.copytree(model, tmp_path / "evil"))
    served = {
        "some/model": model, "some/huge": model, "some/code": code, "some/pickles": pickles, "some/bert": bert,
        "some/damaged": model, "some/cut": large, "some/cut-dead": large, "some/evil": evil,
    }  # fmt: skip
    with serve(served) as (address, paths):
        environment = {
            **os.environ,
            "HF_ENDPOINT": address,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
        }

        def run(model: str, revision: str = "", trust: str = "") -> list[str]:
            command = [sys.executable, "-c", PROGRAM, model, revision, trust]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            asked[:] = paths
            assert result.returncode == 0, result.stderr
            return result.stdout.splitlines()

        yield run


def test_a_model_is_downloaded_without_what_is_not_needed(find: Locate) -> None:
    path, names = find("some/model")
    assert COMMIT in path
    assert names.split() == [
        "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "problem", "fix"),
    [
        ("some/gated", "some/gated is gated", "hf auth login"),
        ("some/absent", "There is no model some/absent on Hugging Face", "Check the id's spelling"),
        ("some/qwen-7", "There is no model some/qwen-7 on Hugging Face", "qwen-7b"),
        ("some/failing", "Hugging Face answered 500 for some/failing", "--hub modelscope"),
        ("some/bert", "unsupported architecture: BertForMaskedLM", "nearest supported"),
        ("some/code", "runs Python code of its own: configuration_odd.py", "--trust_remote_code"),
    ],
)
def test_what_the_hub_refuses_is_a_two_line_error(model: str, problem: str, fix: str, find: Locate) -> None:
    first, second = find(model)
    assert problem in first
    assert fix in second


def test_an_unknown_revision_is_named(find: Locate) -> None:
    first, _ = find("some/model", "v9")
    assert first == "some/model has no revision v9."


def test_nothing_big_is_fetched_for_a_model_that_is_refused(find: Locate, asked: list[str]) -> None:
    find("some/code")
    assert not any(path.endswith((".safetensors", ".py")) for path in asked)


def test_pickles_are_not_fetched(find: Locate, asked: list[str]) -> None:
    first, _ = find("some/pickles")
    assert "some/pickles has no weights in safetensors form" in first
    assert not any(path.endswith(".bin") for path in asked)


def test_a_model_that_does_not_fit_on_the_disk_is_not_begun(find: Locate, asked: list[str], tmp_path: Path) -> None:
    first, second = find("some/huge")
    assert first.startswith("some/huge needs 1073741824.0 GiB; the disk of the download cache has")
    assert "HF_HOME" in second
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


def test_a_broken_line_is_taken_up_where_it_broke(find: Locate, asked: list[str], tmp_path: Path) -> None:
    path, _ = find("some/cut")
    starts = [int(words.removeprefix("from ")) for words in asked if words.startswith("from ")]
    assert len({start for start in starts if start}) >= 2, "ranges were asked for"
    assert (Path(path) / "model-2.safetensors").read_bytes() == LARGE


def test_a_download_that_breaks_off_says_what_is_kept(find: Locate) -> None:
    first, second = find("some/cut-dead")
    assert first.startswith("The download of some/cut-dead broke off; files of ")
    assert "Run the command again" in second


def test_a_damaged_file_is_told_by_its_checksum_and_removed(find: Locate, tmp_path: Path) -> None:
    first, second = find("some/damaged")
    assert first.startswith("model.safetensors of some/damaged was damaged on its way")
    assert "Run the command again" in second
    assert not list((tmp_path / "cache").rglob("model.safetensors"))


def test_a_file_name_that_leads_out_of_the_folder_is_refused(find: Locate, tmp_path: Path) -> None:
    first, _ = find("some/evil")
    assert first.startswith("some/evil cannot be stored")
    assert not list((tmp_path / "cache").rglob("out.json"))
