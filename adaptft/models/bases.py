"""The base model of an adapter: found where the adapter says it is, and proven to be the one it was trained on."""

from __future__ import annotations

from pathlib import Path

from adaptft.artifacts import adapter_base, read_artifact
from adaptft.errors import AdaptftError, ModelError
from adaptft.models import LocalModel, fingerprint, locate
from adaptft.models.adapter_shapes import check_stored, shape_difference, stored_shapes
from adaptft.models.folders import read_folder_config
from adaptft.requests import Hub
from adaptft.shapes import model_shape


def locate_base(
    adapters: Path,
    model: str | None = None,
    *,
    hub: Hub | None = None,
    trust_remote_code: bool = False,
    error: type[AdaptftError] = ModelError,
) -> LocalModel:
    """Find the base of the adapter in ``adapters``; ``model`` names it where the user knows better.

    An adapter that another program wrote has no fingerprint: then the shapes are compared when it is loaded.

    Raises:
        AdaptftError: of class ``error``: the base is not named, not found, or another model than the
            adapter's; the message names both.
    """
    check_stored(adapters)
    named = model or adapter_base(adapters)
    if named is None:
        raise error(f"The adapter in {adapters} does not say which model it belongs to.", fix="Name it with --model.")
    try:
        base = locate(named, hub=hub, trust_remote_code=trust_remote_code)
    except ModelError as cause:
        if model is not None:
            raise
        raise error(
            f"The adapter in {adapters} belongs to the model {named}, which is not found: {cause.problem}",
            fix="Give the model's folder or name with --model.",
        ) from cause
    check_base(adapters, base, error=error)
    return base


def check_base(adapters: Path, base: LocalModel, *, error: type[AdaptftError] = ModelError) -> None:
    """Refuse a base that the adapter in ``adapters`` was not trained on, where the adapter says what it was.

    Raises:
        AdaptftError: of class ``error``: it is another model; the message names both.
    """
    artifact = read_artifact(adapters)
    if artifact is None:
        return
    found = fingerprint(base.path)
    if found != artifact.base_fingerprint:
        shape = model_shape(read_folder_config(base.path), base.name)
        difference = shape_difference(stored_shapes(adapters)[0], shape)
        raise error(
            f"The adapter in {adapters} was trained on {artifact.base_model}; {base.name} is another model "
            f"(fingerprint {found[:12]}, not {artifact.base_fingerprint[:12]}): "
            f"{difference or 'of the same shapes, but its config.json or its weights differ'}.",
            fix=f"Give the folder of {artifact.base_model} as it was in training with --model.",
        )
