"""adaptft fine-tunes large language models on whatever GPU you have.

``import adaptft`` is light: public names are looked up on first use and nothing imports torch until then.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "AdaptftError": "adaptft.errors",
    "Machine": "adaptft.facts",
    "ModelShape": "adaptft.facts",
    "DatasetShape": "adaptft.facts",
    "TrainRequest": "adaptft.requests",
    "EvalRequest": "adaptft.requests",
    "ExportRequest": "adaptft.requests",
    "ServeRequest": "adaptft.requests",
    "TrainPlan": "adaptft.plans",
    "RunReport": "adaptft.reports",
    "probe": "adaptft.hardware",
    "plan_training": "adaptft.policy",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'adaptft' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
