"""The only door to optional packages, and whether the user lets them use the network."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from adaptft.errors import MissingPackage

# import name -> (package on the index, extra of adaptft that brings it)
EXTRAS: dict[str, tuple[str, str]] = {
    "bitsandbytes": ("bitsandbytes", "qlora"),
    "llmcompressor": ("llmcompressor", "export"),
    "compressed_tensors": ("compressed-tensors", "export"),
    "vllm": ("vllm", "serve"),
    "openai": ("openai", "serve"),
    "lm_eval": ("lm_eval", "eval"),
    "tensorboard": ("tensorboard", "train"),
    "modelscope": ("modelscope", "modelscope"),
    "gguf": ("gguf", "gguf"),
}


def is_installed(name: str) -> bool:
    """True where ``import name`` would find a module; nothing is imported."""
    return importlib.util.find_spec(name) is not None


def check_installed(name: str, *, purpose: str) -> None:
    """Make sure that the optional module ``name`` can be imported, without importing it.

    Raises:
        MissingPackage: it is not installed; the fix is the pip line that brings it.
    """
    package, extra = EXTRAS[name]
    if not is_installed(name):
        raise MissingPackage(
            f"{purpose} needs the package {package}, which is not installed.",
            fix=f'Install it: pip install "adaptft[{extra}]"',
        )


def require(name: str, *, purpose: str) -> ModuleType:
    """Import the optional module ``name``, needed for ``purpose`` ("qlora on the GPU").

    Raises:
        MissingPackage: it is not installed; the fix is the pip line that brings it.
    """
    check_installed(name, purpose=purpose)
    return importlib.import_module(name)


def offline_by() -> str | None:
    """The environment variable that forbids Hugging Face's client the network, None where none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")), None)
