"""Training that begins with an adapter there is: its settings into the request, its weights into the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from adaptft.artifacts import check_adapter
from adaptft.errors import AdaptftError, ModelError, RequestError
from adaptft.models.adapter_shapes import check_stored, read_config
from adaptft.models.adapting import first_line, unfit
from adaptft.requests import TrainRequest

UNEVEN = ("rank_pattern", "alpha_pattern", "layers_to_transform", "layer_replication", "target_parameters")
"""PEFT's settings that make adapters of one model differ; a plan has one rank for all of them."""


def with_settings_of_adapter(request: TrainRequest) -> TrainRequest:
    """``request`` with rank, scale and targets of the adapter that it begins with; itself where there is none.

    Raises:
        ModelError: there is no adapter, or one that cannot be read.
        RequestError: the request wants other adapters, or the whole model trained.
    """
    if request.adapters is None:
        return request
    folder = Path(request.adapters)
    check_adapter(folder)
    merging = f"Merge it first, and train the result: adaptft export --format merged --adapters {folder}"
    if request.train_type == "full":
        raise RequestError(f"train_type full trains the whole model, without the adapter in {folder}.", fix=merging)
    check_stored(folder)
    config = read_config(folder)
    _refuse_uneven(folder, config, merging)
    settings = _settings(config)
    for name, value in settings.items():
        wanted = getattr(request, name)
        if name in request.given and wanted not in (value, None):
            raise RequestError(
                f"{name} {_words(wanted)} contradicts the adapter in {folder}, which has {_words(value) or 'none'}.",
                fix=f"Leave {name} out. {merging}",
            )
    return dataclasses.replace(request, **settings)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    targets = config.get("target_modules") or ()
    return {
        "lora_rank": config["r"],
        "lora_alpha": float(config.get("lora_alpha") or config["r"]),
        "target_modules": (targets,) if isinstance(targets, str) else tuple(sorted(targets)),
        "modules_to_save": tuple(config.get("modules_to_save") or ()),
        "use_rslora": bool(config.get("use_rslora")),
        "use_dora": bool(config.get("use_dora")),
    }


def _refuse_uneven(folder: Path, config: dict[str, Any], fix: str) -> None:
    found = [name for name in UNEVEN if config.get(name)]
    found += ["bias"] if config.get("bias", "none") != "none" or config.get("lora_bias") else []
    if found:
        raise ModelError(f"The adapter in {folder} has {', '.join(found)}, which a run cannot go on with.", fix=fix)


def _words(value: Any) -> str:
    return " ".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def fill_adapter(adapted: Any, folder: Path, base: Path, *, error: type[AdaptftError] = ModelError) -> None:
    """The weights in ``folder`` into the adapter that ``adapted`` has, which stays trainable.

    Raises:
        AdaptftError: of class ``error``: a layer is missing on one side, or has another shape.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    stored = load_peft_weights(str(folder), device="cpu")
    own = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    odd = sorted(stored.keys() ^ own.keys())
    if odd:
        raise unfit(folder, base, f"{len(odd)} weights are on one side only, such as {odd[0]}", error)
    try:
        set_peft_model_state_dict(adapted, stored)
    except RuntimeError as cause:
        raise unfit(folder, base, first_line(cause), error) from cause
