"""The shape of any causal language model that transformers knows, read off the model on the meta device."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.facts import LinearKind, LinearShape, ModelShape, MoeShape
from adaptft.shapes.fields import Fields
from adaptft.shapes.stored import quantization, stored_dtype

if TYPE_CHECKING:
    from torch import nn

_NOT_SETTINGS = ("architectures", "model_type", "auto_map", "quantization_config", "compression_config")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "experts_per_token")
_EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")


def is_causal_language_model(config: dict[str, Any], model_type: str) -> bool:
    """True where transformers has a causal language model of this type and config.json asks for one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    architectures = config.get("architectures") or []
    asked = not architectures or any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures)
    return asked and model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def measured_shape(fields: Fields, remote_code: Path | None) -> ModelShape:
    """Build the model without storage and count.

    Raises:
        ModelError: transformers cannot build it from this config.
    """
    model, settings = _on_meta(fields, remote_code)
    tied = _is_tied(model)
    moe = _moe(fields, model, settings)
    linears = _linears(model, tied, moe)
    total = sum({id(p): p.numel() for p in model.parameters()}.values())
    unused = sum(row.in_features * row.out_features * (row.count - row.per_token) for row in linears)
    heads = _first(fields, settings, ("num_attention_heads", "n_head"))
    hidden = _first(fields, settings, ("hidden_size", "n_embd", "d_model"))
    return ModelShape(
        name=fields.name,
        model_type=str(settings["model_type"]),
        architecture=type(model).__name__,
        hidden_size=hidden,
        intermediate_size=settings.get("intermediate_size") or settings.get("n_inner") or 4 * hidden,
        num_layers=_first(fields, settings, ("num_hidden_layers", "n_layer")),
        num_attention_heads=heads,
        num_key_value_heads=settings.get("num_key_value_heads") or heads,
        head_dim=settings.get("head_dim") or hidden // heads,
        vocab_size=_first(fields, settings, ("vocab_size",)),
        max_position_embeddings=_first(fields, settings, ("max_position_embeddings", "n_positions")),
        tie_word_embeddings=tied,
        linears=linears,
        num_parameters=total,
        num_active_parameters=total - unused,
        stored_dtype=stored_dtype(fields),
        sliding_window=settings.get("sliding_window") or None,
        quantization=quantization(fields),
        moe=moe,
    )


def _on_meta(fields: Fields, remote_code: Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """The model on the meta device with tied weights tied, and its settings with transformers' defaults."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    trust = remote_code is not None
    try:
        if remote_code is not None:
            config = AutoConfig.from_pretrained(remote_code, trust_remote_code=True)
        else:
            raw = {key: value for key, value in fields.config.items() if key not in _NOT_SETTINGS}
            config = AutoConfig.for_model(fields.config["model_type"], **raw)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
    except Exception as cause:  # transformers raises many kinds; all of them mean that this config is unusable
        raise fields.error(
            f"describes no model that transformers can build: {str(cause).splitlines()[0]}",
            "Take the config.json that was published with the weights, or another model.",
        ) from cause
    model.tie_weights()  # type: ignore[operator]
    return model, config.to_dict()


def _is_tied(model: Any) -> bool:
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight


def _first(fields: Fields, settings: dict[str, Any], keys: tuple[str, ...]) -> int:
    for key in keys:
        if settings.get(key) is not None:
            return int(settings[key])
    raise fields.error(f"has no {keys[0]}", "adaptft cannot plan for this architecture; use another model.")


def _linears(model: nn.Module, tied: bool, moe: MoeShape | None) -> tuple[LinearShape, ...]:
    """Group the model's linear modules and fused experts by name without the layer's number, and by shape."""
    groups: dict[tuple[str, LinearKind, int, int, bool, bool], list[int | None]] = defaultdict(list)
    for name, kind, inputs, outputs, bias, module in _matrices(model):
        path, layer = _split_layer(name)
        groups[path, kind, inputs, outputs, bias, module].append(layer)
    rows = []
    for (path, kind, inputs, outputs, bias, module), layers in groups.items():
        copies, used = (moe.num_experts, moe.experts_per_token) if moe and kind == "expert" else (1, 1)
        rows.append(
            LinearShape(
                name=path.rpartition(".")[2], kind=kind, in_features=inputs, out_features=outputs,
                count=copies * len(layers), per_token=used * len(layers), bias=bias, is_linear_module=module,
                tied=tied and kind == "head", path=path,
                layers=tuple(layer for layer in layers if layer is not None) if "*" in path else None,
            )
        )  # fmt: skip
    return tuple(rows)


def _matrices(model: nn.Module) -> list[tuple[str, LinearKind, int, int, bool, bool]]:
    """(full name, kind, inputs, outputs, bias, is a linear module) of everything that multiplies."""
    import torch
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer, its weight transposed

    rows: list[tuple[str, LinearKind, int, int, bool, bool]] = []
    head = model.get_output_embeddings()  # type: ignore[operator]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            kind: LinearKind = "head" if module is head else _kind(name, module.out_features)
            rows.append((name, kind, module.in_features, module.out_features, module.bias is not None, True))
            continue
        if isinstance(module, Conv1D):
            rows.append((name, _kind(name, module.nf), module.nx, module.nf, True, True))
            continue
        for part, parameter in module.named_parameters(recurse=False):
            if name.endswith("experts") and parameter.dim() == 3:
                rows.append((f"{name}.{part}", "expert", parameter.shape[2], parameter.shape[1], False, False))
            elif part == "weight" and parameter.dim() == 2 and re.search(r"\.(gate|router)$", name):
                rows.append((name, "router", parameter.shape[1], parameter.shape[0], False, False))
    return rows


def _kind(name: str, outputs: int) -> LinearKind:
    if outputs == 1 or re.search(r"\.(gate|router)$", name):
        return "router"
    if "shared_expert" in name:
        return "shared_expert"
    return "attention" if re.search(r"att(n|ention)|mixer", name) else "mlp"


def _split_layer(name: str) -> tuple[str, int | None]:
    """``model.layers.3.mlp.up_proj`` -> (``model.layers.*.mlp.up_proj``, 3)."""
    match = re.search(r"\.(\d+)\.", name)
    if match is None:
        return name, None
    return f"{name[: match.start()]}.*.{name[match.end() :]}", int(match[1])


def _moe(fields: Fields, model: nn.Module, settings: dict[str, Any]) -> MoeShape | None:
    """Routed layers and experts, as the fused parameters show them."""
    layers, num_experts = [], 0
    for name, module in model.named_modules():
        stacked = [p for p in module.parameters(recurse=False) if p.dim() == 3]
        if name.endswith("experts") and stacked:
            num_experts = stacked[0].shape[0]
            layers.append(_split_layer(name)[1] or 0)
    if not layers:
        return None
    return MoeShape(
        layers=tuple(layers),
        num_experts=num_experts,
        experts_per_token=_first(fields, settings, _PER_TOKEN),
        expert_intermediate_size=_first(fields, settings, _EXPERT_WIDTH),
        shared_intermediate_size=settings.get("shared_expert_intermediate_size") or 0,
    )
