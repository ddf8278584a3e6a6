"""An adapter put on its model, whole: PEFT drops weights for layers that the model lacks, and says nothing."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from adaptft.artifacts import ADAPTER_CONFIG
from adaptft.errors import AdaptftError, ModelError


def put_adapter(
    model: Any, folder: Path, *, base: Path, name: str = "default", error: type[AdaptftError] = ModelError
) -> Any:
    """``model`` with the PEFT adapter in ``folder`` on it as ``name``; more can follow on what is returned.

    Args:
        base: where the model is from, for messages.

    Raises:
        AdaptftError: of class ``error``: a layer has another shape, is missing in the model or in the adapter.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            if isinstance(model, PeftModel):
                model.load_adapter(str(folder), adapter_name=name)
            else:
                model = PeftModel.from_pretrained(model, str(folder), adapter_name=name)
    except (RuntimeError, ValueError, OSError, UserWarning) as cause:
        raise _unfit(folder, base, f"{_telling_line(cause)}.", error) from cause
    unused = _unused_weights(model, folder, name)
    if unused:
        what = f"it has {len(unused)} weights for layers that the model lacks, such as {unused[0]}."
        raise _unfit(folder, base, what, error)
    return model


def _unused_weights(adapted: Any, folder: Path, name: str) -> list[str]:
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    stored = load_peft_weights(str(folder), device="cpu")
    return sorted(set(stored) - set(get_peft_model_state_dict(adapted, adapter_name=name)))


def _unfit(folder: Path, base: Path, what: str, error: type[AdaptftError]) -> AdaptftError:
    named = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8")).get("base_model_name_or_path")
    return error(
        f"The adapter in {folder} does not fit the model in {base}: {what}",
        fix=f"Give the model that the adapter was trained on: --model {named or 'BASE'}",
    )


def _telling_line(cause: BaseException) -> str:
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    mismatches = [line for line in lines if "size mismatch" in line]
    return (mismatches or lines or [type(cause).__name__])[0].rstrip(".")
