"""A PEFT adapter on its base: all of its weights, or an error."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptft.artifacts import adapter_base
from adaptft.errors import AdaptftError, ModelError
from adaptft.models.adapter_shapes import check_stored

if TYPE_CHECKING:
    from peft import PeftModel


def put_on(
    model: Any, adapters: Path, base: Path, *, name: str = "default", error: type[AdaptftError] = ModelError
) -> PeftModel:
    """``model``, loaded from ``base``, with the adapter in ``adapters`` on it, unmerged.

    PEFT drops weights for layers that the model lacks, and says nothing; here that is an error, for whoever
    loads an adapter.

    Args:
        model: a plain model, or one that has adapters already.
        name: what PEFT calls the adapter.

    Raises:
        ModelError: the weights are missing or cut off.
        AdaptftError: of class ``error``: a layer is missing in the model or in the adapter, or has another shape.
    """
    from peft import PeftModel

    check_stored(adapters)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            if isinstance(model, PeftModel):
                model.load_adapter(str(adapters), adapter_name=name)
                adapted = model
            else:
                adapted = PeftModel.from_pretrained(model, str(adapters), adapter_name=name)
    except (RuntimeError, ValueError, OSError, UserWarning) as cause:
        raise unfit(adapters, base, first_line(cause), error) from cause
    _check_all_used(adapted, adapters, base, name, error)
    return adapted


def _check_all_used(adapted: PeftModel, adapters: Path, base: Path, name: str, error: type[AdaptftError]) -> None:
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    used = get_peft_model_state_dict(adapted, state_dict=_in_memory(adapted), adapter_name=name)
    unused = sorted(set(load_peft_weights(str(adapters), device="cpu")) - set(used))
    if unused:
        lacks = f"it has {len(unused)} weights for layers that the model lacks, such as {unused[0]}"
        raise unfit(adapters, base, lacks, error)


def _in_memory(adapted: PeftModel) -> dict[str, Any]:
    """The state without what waits on disk, which is the base: PEFT would read the whole model for its own."""
    modules = adapted.named_modules()
    kept = ((name, part) for name, part in modules if getattr(part._parameters, "offload_device", None) != "disk")
    return {f"{name}.{key}": weight for name, part in kept for key, weight in part._parameters.items()}


def unfit(adapters: Path, base: Path, why: str, error: type[AdaptftError]) -> AdaptftError:
    """The error for an adapter and a model that do not belong together."""
    own = adapter_base(adapters)
    return error(
        f"The adapter in {adapters} does not fit the model in {base}: {why}.",
        fix=f"Name the model that it was trained on: --model {own or 'BASE'}",
    )


def first_line(cause: BaseException) -> str:
    """The line of an error's text that says most: PEFT's and torch's begin with a heading."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    mismatches = [line for line in lines if "size mismatch" in line]
    return (mismatches or lines or [type(cause).__name__])[0].rstrip(".")
