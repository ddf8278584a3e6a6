"""LoRA adapters on a base model as the plan says, through PEFT; and what of a model is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from adaptft.errors import TrainingError
from adaptft.kernels.converting import convert_nf4, convert_to_fp8, is_named
from adaptft.kernels.frozen_linear import FrozenLinear
from adaptft.kernels.fusing import fuse_adapted_layers, left_unfused
from adaptft.kernels.fusing_whole import train_in_fp8
from adaptft.kernels.rounding import Inputs
from adaptft.plans import DTYPE_NAMES, AdapterKernels, Decisions, Method
from adaptft.training import ranks
from adaptft.training.batches import Rows
from adaptft.training.calibration import Passage, convert_in_passing
from adaptft.training.checkpointing import decoder_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Trained and all parameters; 4-bit weights are counted unpacked."""

    trained: int
    total: int

    @property
    def share(self) -> float:
        """Trained part of all."""
        return self.trained / max(self.total, 1)


def prepare(model: Any, decisions: Decisions, rows: Rows, device: torch.device) -> Any:
    """Make ``model`` trainable by the planned method: all of it, or adapters in fp32 on a frozen base.

    Frozen FP8 and NF4 bases are swapped for our kernels, and adapted layers fused, after the adapters are on, so that
    PEFT sees the layers it knows.

    Args:
        rows: as they are trained; an FP8 base is rounded for them.
        device: where this rank trains, which an FP8 base comes to.

    Raises:
        TrainingError: no linear layer of the model is one of the planned targets, a module to save is not there, or
            the base could not be stored, or the whole model not be trained in FP8, as planned.
    """
    method, kernels = decisions.method.value, decisions.adapters.value
    if method.train_type == "full":
        model.requires_grad_(True)
        if decisions.precision.value.compute == "fp8":
            _train_in_fp8(model, method)
        return model
    adapted = _add_adapters(model, method)
    _leave_inputs_alone(adapted)
    is_sharded = decisions.placement.value.is_sharded
    if is_sharded and method.base_storage == "nf4":
        _keep_packing(adapted)
    else:
        _swap_frozen_linears(adapted, decisions, passage_of(decisions, rows, device))
    if is_sharded:
        _make_shardable(adapted, getattr(torch, DTYPE_NAMES[decisions.precision.value.autocast]))
    if kernels.fused:
        fuse_adapted_layers(adapted, transposed_copy=kernels.transposed_copy, tile_tokens=kernels.mlp_tile_tokens)
    return adapted


def unfused(model: Any, kernels: AdapterKernels) -> str | None:
    """What runs slower and takes more memory than planned, in a sentence; None where all is as planned."""
    names = left_unfused(model) if kernels.fused else ()
    if not names:
        return None
    return (
        f"The plan counts on fused kernels, which {len(names)} blocks of this model cannot use ({names[0]} is the "
        "first): PEFT's own layers run there, with the same numbers, slower and with more memory than planned."
    )


def _train_in_fp8(model: Any, method: Method) -> None:
    """What calls itself FP8 must be so in every layer but the skipped ones."""
    converted, meant = train_in_fp8(model, method.skipped_modules)
    if converted < meant or not meant:
        raise TrainingError(
            f"The plan trains in FP8, and only {converted} of {meant} linear layers can.",
            fix="Train with --fp8 false: this model's layers are not plain linear ones.",
        )


def _add_adapters(model: Any, method: Method) -> Any:
    from peft import LoraConfig, get_peft_model

    targets: Any = method.target_regex or list(method.target_modules)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=method.lora_rank,
        lora_alpha=method.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=method.lora_dropout,
        target_modules=targets,
        exclude_modules=_excluded(method) or None,
        modules_to_save=list(method.modules_to_save) or None,
        use_rslora=method.use_rslora,
        use_dora=method.use_dora,
    )
    linears = _linear_names(model)
    _require_modules(model, method.modules_to_save)
    try:
        return get_peft_model(model, config, autocast_adapter_dtype=True)
    except ValueError as cause:
        if "target" not in str(cause).lower():
            raise
        raise TrainingError(
            f"No linear layer of the model matches target_modules {targets!r}.",
            fix=f"Name some of its layers: {', '.join(linears)}; or all-linear.",
        ) from cause


def _excluded(method: Method) -> list[str]:
    """What must get no adapter whatever PEFT matches: all that stays in 16 bit, less a head that was asked for."""
    if method.target_regex is not None:
        return [name for name in method.skipped_modules if re.fullmatch(method.target_regex, name) is None]
    return [name for name in method.skipped_modules if name not in method.target_modules]


def _require_modules(model: nn.Module, names: tuple[str, ...]) -> None:
    """PEFT takes no notice of a module to save that is not there."""
    present = {part for path, _ in model.named_modules() for part in (path, path.rsplit(".", 1)[-1])}
    for name in names:
        if not any(path == name or path.endswith(f".{name}") for path in present):
            raise TrainingError(
                f"modules_to_save {name} is no module of the model.",
                fix="Name modules such as embed_tokens or lm_head, or leave it out.",
            )


def _leave_inputs_alone(model: Any) -> None:
    """PEFT casts each adapter's input up to the adapter's FP32, which autocast casts down again.

    That costs 17 GiB and 15 % of the speed at a 7B; with the cast off, autocast brings the adapter to the input.
    """
    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module.cast_input_dtype_enabled = False


def _make_shardable(model: nn.Module, dtype: torch.dtype) -> None:
    """Frozen weights of our own become what FSDP2 cuts."""
    for module in model.modules():
        if isinstance(module, FrozenLinear):
            module.make_shardable(dtype)


def _keep_packing(model: Any) -> None:
    """bitsandbytes packs NF4 weights anew where they are first evaluated on a host, and could be sharded no more."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _swap_frozen_linears(model: Any, decisions: Decisions, passage: Passage) -> None:
    """Put our kernels under the adapters; what calls itself FP8 or NF4 must be so in every adapted layer."""
    method = decisions.method.value
    if method.base_storage not in ("fp8", "nf4") or method.use_dora:
        return  # DoRA asks bitsandbytes' own layers for their weights
    if method.base_storage == "fp8":
        converted = _to_fp8(model, decisions, passage)
    else:
        converted = convert_nf4(model, fp8=decisions.precision.value.compute == "fp8")
    adapted = sum(
        hasattr(module, "cast_input_dtype_enabled") and not is_named(name, method.skipped_modules)
        for name, module in model.named_modules()
    )
    if converted < adapted:
        raise TrainingError(
            f"The plan stores the base in {method.base_storage}, and only {converted} of {adapted} adapted layers are.",
            fix="Train with --fp8 false, or with --train_type lora: this model's layers are not plain linear ones.",
        )


def passage_of(decisions: Decisions, rows: Rows, device: torch.device) -> Passage:
    """What goes through an FP8 base on its way, and where to: what is sharded afterwards waits on the host."""
    tokens = decisions.adapters.value.calibration_tokens
    return Passage(rows, tokens, device, returns=decisions.placement.value.is_sharded)


def _to_fp8(model: Any, decisions: Decisions, passage: Passage) -> int:
    skipped, copy = decisions.method.value.skipped_modules, decisions.adapters.value.transposed_copy
    if not ranks.has_weights(decisions):
        return convert_to_fp8(model, skipped, transposed_copy=copy, has_weights=False)

    def convert(part: nn.Module, inputs: Mapping[nn.Module, Inputs]) -> int:
        return convert_to_fp8(part, skipped, transposed_copy=copy, inputs=inputs)

    return convert_in_passing(model, decoder_layers(model), passage, convert)


def _linear_names(model: nn.Module) -> tuple[str, ...]:
    """Last names of the model's linear layers (``q_proj``), numbered ones left out."""
    names = {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return tuple(sorted(name for name in names if not re.fullmatch(r"\d+", name)))


def causal_lm(model: Any) -> Any:
    """The transformers model under PEFT's wrapping, or ``model`` itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that get gradients."""
    return [p for p in model.parameters() if p.requires_grad]


def count_parameters(model: nn.Module) -> ParameterCount:
    """Trained and all parameters; our frozen linears' weights are counted, whatever they are kept as."""
    trained = sum(p.numel() for p in trained_parameters(model))
    ours = [module for module in model.modules() if isinstance(module, FrozenLinear)]
    bytes_of_ours = {id(p) for module in ours for p in module.parameters(recurse=False)}
    frozen = sum(_unpacked(p) for p in model.parameters() if not p.requires_grad and id(p) not in bytes_of_ours)
    frozen += sum(_num_weights(module) for module in ours if not module.is_joined)
    return ParameterCount(trained=trained, total=trained + frozen)


def tensor_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers; what is tied, or a view of another, counts once."""
    storages = [t.untyped_storage() for t in (*model.parameters(), *model.buffers())]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _num_weights(layer: FrozenLinear) -> int:
    return layer.in_features * layer.out_features + (0 if layer.bias is None else layer.bias.numel())


def _unpacked(parameter: Any) -> int:
    """bitsandbytes packs two 4-bit weights in a byte."""
    state = getattr(parameter, "quant_state", None)
    return int(parameter.numel() if state is None else state.shape.numel())
