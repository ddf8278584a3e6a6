"""LoRA adapter folders, read as facts: ranks, layer shapes, stop tokens. No weights are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptft.artifacts import ADAPTER_CONFIG, adapter_base, check_adapter, read_artifact
from adaptft.errors import ModelError
from adaptft.facts import AdapterShape, ModelShape
from adaptft.models.stopping import named_stop_ids
from adaptft.records import read_object

WEIGHTS = "adapter_model.safetensors"
_COPY = "Train the adapter again, or copy it again."
CHANGING_INITS = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the base's weights when PEFT loads the adapter."""


def read_adapter(name: str, folder: Path) -> AdapterShape:
    """The adapter in ``folder``, to be served as ``name``.

    Raises:
        ModelError: there is no adapter, or not a LoRA adapter that can be read.
    """
    check_adapter(folder)
    config = read_config(folder)
    shapes, stored_rank = stored_shapes(folder)
    artifact = read_artifact(folder)
    ranks = [config["r"], *(config.get("rank_pattern") or {}).values()]
    template = folder / "chat_template.jinja"
    return AdapterShape(
        name=name,
        path=str(folder.absolute()),
        rank=config["r"],
        max_rank=max(*ranks, stored_rank),
        base_model=artifact.base_model if artifact else adapter_base(folder),
        base_fingerprint=artifact.base_fingerprint if artifact else None,
        layer_shapes=shapes,
        special_features=_special_features(config),
        eos_token_ids=named_stop_ids(folder),
        chat_template=str(template.absolute()) if template.is_file() else None,
    )


def check_stored(folder: Path) -> None:
    """Look before anything is loaded whether the adapter in ``folder`` can be read, of whatever type it is.

    Raises:
        ModelError: its config is broken, or its weights are missing or cut off.
    """
    read_object(folder / ADAPTER_CONFIG, error=ModelError, fix=_COPY)
    stored_shapes(folder)


def check_shapes(adapter: AdapterShape, model: ModelShape) -> None:
    """Refuse an adapter that another model's layers were made for.

    Raises:
        ModelError: a layer is missing in ``model`` or has other dimensions.
    """
    difference = shape_difference(adapter.layer_shapes, model)
    if difference is not None:
        raise ModelError(
            f"Adapter {adapter.name} belongs to another model: {difference}.",
            fix=f"Take its own base: {adapter.base_model or 'see its adapter_config.json'}",
        )


def shape_difference(layer_shapes: dict[str, tuple[int, int]], model: ModelShape) -> str | None:
    """The first layer of an adapter that ``model`` has in other dimensions, in words; None where all are alike."""
    known: dict[str, set[tuple[int, int]]] = {}
    for linear in model.linears:
        known.setdefault(linear.name, set()).add((linear.in_features, linear.out_features))
    for layer, (ins, outs) in layer_shapes.items():
        if layer in known and (ins, outs) not in known[layer]:
            theirs = " or ".join(f"{a} x {b}" for a, b in sorted(known[layer]))
            return f"its {layer} is {ins} x {outs}, {model.name}'s is {theirs}"
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """PEFT's settings of the adapter in ``folder``.

    Raises:
        ModelError: they cannot be read, or are not LoRA's.
    """
    path = folder / ADAPTER_CONFIG
    config = read_object(path, error=ModelError, fix=_COPY)
    kind = config.get("peft_type")
    if kind != "LORA" or not isinstance(config.get("r"), int):
        raise ModelError(
            f"The adapter in {folder} is of type {kind}; only LoRA adapters are supported.",
            fix=f"Merge it: adaptft export --adapters {folder} --format merged, then use the result.",
        )
    return config


def stored_shapes(folder: Path) -> tuple[dict[str, tuple[int, int]], int]:
    """Layer name to (in_features, out_features), and the largest rank, from the header of the weight file.

    Raises:
        ModelError: there is no weight file, or it is cut off.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}.", fix="Copy the whole folder, or train the adapter again.")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as tensors:
            sizes = {key: tuple(tensors.get_slice(key).get_shape()) for key in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as cause:
        raise ModelError(f"Cannot read {path}: {cause}.", fix="Copy the file again: it may be cut off.") from cause
    ins = {key.split(".")[-3]: size[1] for key, size in sizes.items() if key.endswith(".lora_A.weight")}
    outs = {key.split(".")[-3]: size[0] for key, size in sizes.items() if key.endswith(".lora_B.weight")}
    ranks = [size[0] for key, size in sizes.items() if key.endswith(".lora_A.weight")]
    return {layer: (ins[layer], outs[layer]) for layer in sorted(ins.keys() & outs.keys())}, max(ranks, default=0)


def _special_features(config: dict[str, Any]) -> tuple[str, ...]:
    init = config.get("init_lora_weights")
    present = {
        "DoRA": config.get("use_dora"),
        "modules trained whole (modules_to_save)": config.get("modules_to_save"),
        "trained biases": config.get("bias", "none") != "none" or config.get("lora_bias"),
        f"the initialisation {init}": isinstance(init, str) and init.lower().startswith(CHANGING_INITS),
        "activation tokens (aLoRA)": config.get("alora_invocation_tokens"),
        "repeated layers": config.get("layer_replication"),
    }
    return tuple(feature for feature, is_used in present.items() if is_used)
