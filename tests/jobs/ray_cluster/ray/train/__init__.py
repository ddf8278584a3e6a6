"""Stands in for Ray Train: workers are processes of this machine, one after another; it takes what Ray's own takes."""

import os
from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class FailureConfig:
    max_failures: int = 0


@dataclass(kw_only=True)
class RunConfig:
    failure_config: FailureConfig


@dataclass(kw_only=True)
class ScalingConfig:
    num_workers: int
    use_gpu: bool
    resources_per_worker: dict[str, Any]
    placement_strategy: str


class Context:
    def get_world_rank(self) -> int:
        return int(os.environ["RANK"])


def get_context() -> Context:
    return Context()
