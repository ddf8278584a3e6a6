"""The trainer's mixin for weights in shards: whole files are written and read, so that any number of ranks goes on.

transformers' own files of sharded runs are other ones than those of one rank (``pytorch_model_fsdp.bin``, optimizer
states by name), gather a frozen base with every save, and can only be gone on with by sharded runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.state import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from adaptft.training import checking, ranks
from adaptft.training.adapters import trained_parameters

OPTIMIZER_FILE = "optimizer.pt"
"""transformers' name."""


class Sharded:
    """Mixin over ``transformers.Trainer``; all of it changes nothing for plans that do not shard."""

    def create_accelerator_and_postprocess(self: Any) -> None:
        """As transformers'; accelerate takes its FSDP plugin on GPUs only, and torch shards on CPUs as well."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if self.args.fsdp_plugin_args is not None and not self.is_fsdp_enabled:
            state = self.accelerator.state
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            state.distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def _shards_made(self: Any, model: nn.Module) -> None:
        """Sharding has put other parameters into ``model``, and whole ones are on no rank before."""
        if self.is_fsdp_enabled:
            self.trained = trained_parameters(model)
            checking.check_planned_loss(self.plan, model)

    def save_model(self: Any, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers'; of a sharded model with adapters only these are gathered."""
        if not self.is_fsdp_enabled:
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]
            return
        weights = whole_weights(self.model)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _save_optimizer_and_scheduler(self: Any, output_dir: str) -> None:
        if not self.is_fsdp_enabled:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return
        state = whole_optimizer(self.optimizer.state_dict())
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_FILE)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_from_checkpoint(self: Any, folder: str, model: Any = None) -> None:
        if not self.is_fsdp_enabled:
            super()._load_from_checkpoint(folder, model)  # type: ignore[misc]
            return
        load_weights(self.model if model is None else model, Path(folder))

    def load_optimizer(self: Any, folder: str) -> None:
        """The optimizer and the schedule of the checkpoint in ``folder``."""
        if not self.is_fsdp_enabled:
            super()._load_optimizer_and_scheduler(folder)  # type: ignore[misc]
            return
        stored = torch.load(Path(folder) / OPTIMIZER_FILE, map_location="cpu", weights_only=True, mmap=True)
        self.optimizer.load_state_dict(in_shards(stored, self.optimizer.param_groups))
        self.lr_scheduler.load_state_dict(torch.load(Path(folder) / "scheduler.pt", weights_only=True))


def whole(value: Any) -> Any:
    """``value`` gathered from all ranks, on the host; itself where it is in no shards. All ranks must call it."""
    return value.full_tensor().cpu() if isinstance(value, DTensor) else value


def on_device(value: Any) -> Any:
    """``value`` gathered from all ranks, where they compute; itself where it is in no shards."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def shard_like(value: Tensor, example: Tensor) -> Tensor:
    """This rank's part of ``value``, which every rank has, cut as ``example`` is; no rank waits for another."""
    if not isinstance(example, DTensor):
        return value
    value = value.to(example.device)
    return distribute_tensor(value, example.device_mesh, example.placements, src_data_rank=None)


@torch.no_grad()
def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a save of ``model`` holds, gathered: all weights, or the trained ones where adapters are on a frozen base.

    Only the first rank keeps them; each is alone on a device while it is gathered. Tied weights come once.
    """
    is_adapted = hasattr(model, "peft_config")
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in seen or (is_adapted and not value.requires_grad):
            continue
        seen.add(id(value))
        gathered = whole(value.detach())
        if ranks.is_first():
            weights[name] = gathered
    return weights


def whole_optimizer(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's ``state_dict`` with its states gathered; the first rank's is complete."""
    gathered: dict[int, dict[str, Any]] = {}
    for number, values in state["state"].items():
        found = {name: whole(value) for name, value in values.items()}
        if ranks.is_first():
            gathered[number] = found
    return {**state, "state": gathered}


def in_shards(stored: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole optimizer's state, cut as the parameters of ``groups`` are; it counts them in their order."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    state = {
        number: {
            name: shard_like(value, parameters[number]) if _is_like(value, parameters[number]) else value
            for name, value in values.items()
        }
        for number, values in stored["state"].items()
    }
    return {**stored, "state": state}


def _is_like(value: Any, parameter: Tensor) -> bool:
    return torch.is_tensor(value) and value.shape == parameter.shape


@torch.no_grad()
def load_weights(model: Any, folder: Path) -> None:
    """The adapters or weights in ``folder`` into ``model``, in shards or not yet; every rank reads its part."""
    own = _own_weights(model)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                own[name].copy_(shard_like(file.get_tensor(name), own[name]))


def _own_weights(model: Any) -> dict[str, Tensor]:
    """Weights by the names they have in files; writing into them changes the model."""
    if not hasattr(model, "peft_config"):
        return dict(model.state_dict())
    from peft import get_peft_model_state_dict

    own: dict[str, Tensor] = get_peft_model_state_dict(model, save_embedding_layers=False)
    return own
