"""config.json to ModelShape: arithmetic for the families of the table, the meta device for the rest.

No weights are read, and nothing heavy is imported for a model of the table.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from adaptft.errors import ModelError
from adaptft.facts import ModelShape
from adaptft.shapes.arithmetic import computed_shape
from adaptft.shapes.families import FAMILIES
from adaptft.shapes.fields import Fields

__all__ = ["FAMILIES", "model_shape"]


def model_shape(config: dict[str, Any], name: str, *, remote_code: Path | None = None) -> ModelShape:
    """The shape of the causal language model that ``config`` (a config.json) describes.

    Args:
        name: the model as the user named it; it stands in the shape and in errors.
        remote_code: the model's folder, where its own Python code may run (``--trust_remote_code``).

    Raises:
        ModelError: a field is missing or absurd, or the architecture is not supported.
    """
    fields = Fields(config, name)
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise fields.error("has no model_type", "Take the config.json that was published with the weights.")
    text = config.get("text_config")
    if isinstance(text, dict):
        raise ModelError(
            f"{name} is a multimodal model ({model_type}); adaptft trains text models only.",
            fix=f"Use a text model of the same kind, such as {_nearest(text.get('model_type', model_type))}.",
        )
    if model_type in FAMILIES:
        return computed_shape(fields)
    return _measured(fields, model_type, remote_code)


def _measured(fields: Fields, model_type: str, remote_code: Path | None) -> ModelShape:
    from adaptft.shapes.measured import is_causal_language_model, measured_shape

    if remote_code is None and not is_causal_language_model(fields.config, model_type):
        kind = next(iter(fields.get("architectures") or []), model_type)
        raise ModelError(
            f"{fields.name} is of an unsupported architecture: {kind}.",
            fix=f"Use a causal language model; the nearest supported one is {_nearest(model_type)}.",
        )
    return measured_shape(fields, remote_code)


def _nearest(model_type: str) -> str:
    """The row of FAMILIES whose name is most like ``model_type``."""
    return next(iter(get_close_matches(model_type, FAMILIES, n=1, cutoff=0.0)))
