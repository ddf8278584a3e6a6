"""Stands in for Ray Train's torch trainer."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from ray.train import RunConfig, ScalingConfig


@dataclass(kw_only=True)
class TorchConfig:
    backend: str


class TorchTrainer:
    def __init__(
        self,
        loop: Callable[[], None],
        *,
        torch_config: TorchConfig,
        scaling_config: ScalingConfig,
        run_config: RunConfig,
    ) -> None:
        self.loop, self.scaling, self.run = loop, scaling_config, run_config
        assert scaling_config.use_gpu == ("GPU" in scaling_config.resources_per_worker)
        assert scaling_config.placement_strategy == "STRICT_SPREAD"

    def fit(self) -> None:
        for rank in range(self.scaling.num_workers):
            os.environ |= {"RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
            self.loop()
