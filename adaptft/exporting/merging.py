"""An adapter added into its base. Sums are taken in fp32, one layer at a time, so a 16-bit model needs no fp32 copy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from adaptft import quiet
from adaptft.errors import ExportError
from adaptft.plans import Dtype

if TYPE_CHECKING:
    from peft import PeftModel

_TORCH_DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WRONG_BASE = "Give the model that the adapter was trained on with --model."


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a plan's word."""
    return _TORCH_DTYPES[dtype]


def load_merged(base: Path, adapters: Path | None, *, dtype: Dtype, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model in ``base`` on the CPU in ``dtype``, with the adapter in ``adapters`` merged into it.

    Raises:
        ExportError: the adapter does not fit the base: a layer is missing or has another shape.
    """
    with quiet.loading():
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=torch_dtype(dtype), trust_remote_code=trust_remote_code, local_files_only=True
        )
    if adapters is None:
        return model  # type: ignore[no-any-return]
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = PeftModel.from_pretrained(model, str(adapters))
    except (RuntimeError, ValueError, UserWarning) as cause:
        raise ExportError(
            f"The adapter in {adapters} does not fit the model in {base}: {_first_line(cause)}.",
            fix=_WRONG_BASE,
        ) from cause
    _check_all_used(adapted, adapters, base)
    return merge(adapted)


def _check_all_used(adapted: PeftModel, adapters: Path, base: Path) -> None:
    """PEFT drops an adapter's weights for layers that the model does not have, and says nothing."""
    from peft import get_peft_model_state_dict
    from peft.utils import load_peft_weights

    unused = sorted(set(load_peft_weights(str(adapters), device="cpu")) - set(get_peft_model_state_dict(adapted)))
    if unused:
        raise ExportError(
            f"The adapter in {adapters} does not fit the model in {base}: "
            f"it has {len(unused)} weights for layers that the model lacks, such as {unused[0]}.",
            fix=_WRONG_BASE,
        )


def merge(adapted: PeftModel) -> PreTrainedModel:
    """Add every adapter of ``adapted`` into its layer and give the plain model back; ``adapted`` is used up.

    Modules saved whole (``modules_to_save``) take the place of the base's. Each layer is widened to
    fp32 for the sum and rounded once, to its own type.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    with torch.no_grad():
        for module in adapted.modules():
            if isinstance(module, BaseTunerLayer):
                _merge_layer(module)
    model: PreTrainedModel = adapted.unload()
    _correct_tie(model)
    return model


def _merge_layer(layer: Any) -> None:
    base: nn.Module = layer.get_base_layer()
    dtypes = {name: parameter.dtype for name, parameter in base.named_parameters()}
    base.float()
    layer.merge(safe_merge=False)
    for name, parameter in base.named_parameters():
        parameter.data = parameter.data.to(dtypes[name])


def _correct_tie(model: PreTrainedModel) -> None:
    """A head or an embedding that was trained whole is no longer the other one: config.json must not say so."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and embedding is not None and head.weight is not embedding.weight:
        model.config.tie_word_embeddings = False


def _first_line(cause: BaseException) -> str:
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    mismatches = [line for line in lines if "size mismatch" in line]
    return (mismatches or lines or [type(cause).__name__])[0].rstrip(".")
