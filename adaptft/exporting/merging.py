"""An adapter added into its base. Sums are taken in fp32, one layer at a time, so a 16-bit model needs no fp32 copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from adaptft.errors import ExportError
from adaptft.exporting.layers import in_memory
from adaptft.models.adapting import put_on
from adaptft.models.loading import load_weights
from adaptft.plans import DTYPE_NAMES, Dtype

if TYPE_CHECKING:
    from peft import PeftModel


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a plan's word."""
    named: torch.dtype = getattr(torch, DTYPE_NAMES[dtype])
    return named


def load_merged(base: Path, adapters: Path | None, *, dtype: Dtype, trust_remote_code: bool = False) -> PreTrainedModel:
    """The model in ``base`` on the CPU in ``dtype``, with the adapter in ``adapters`` merged into it.

    Raises:
        ExportError: the adapter does not fit the base: a layer is missing or has another shape.
    """
    model = load_weights(base, dtype=torch_dtype(dtype), trust_remote_code=trust_remote_code, local_files_only=True)
    if adapters is None:
        return model  # type: ignore[no-any-return]
    return merge(put_on(model, adapters, base, error=ExportError))


def merge(adapted: PeftModel) -> PreTrainedModel:
    """Add every adapter of ``adapted`` into its layer and give the plain model back; ``adapted`` is used up.

    Modules saved whole (``modules_to_save``) take the place of the base's. Each layer is widened to
    fp32 for the sum and rounded once, to its own type.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in adapted.modules() if isinstance(module, BaseTunerLayer)]
    with torch.no_grad():
        _untie(adapted, layers)
        for layer in layers:
            _merge_layer(layer)
    model: PreTrainedModel = adapted.unload()
    _correct_tie(model)
    return model


def _untie(adapted: PeftModel, layers: list[Any]) -> None:
    """An adapted embedding gets a table of its own: added into the shared one, it would change the head as well."""
    model = adapted.get_base_model()
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    tables = [getattr(end, "base_layer", end) for end in ends if end is not None]
    adapted_tables = [base for layer in layers if (base := layer.get_base_layer()) in tables]
    if len(tables) == 2 and adapted_tables and _is_same(tables[0].weight, tables[1].weight):
        adapted_tables[0].weight = nn.Parameter(tables[0].weight.detach().clone(), requires_grad=False)


def _merge_layer(layer: Any) -> None:
    base: nn.Module = layer.get_base_layer()
    with in_memory(base):
        dtypes = {name: parameter.dtype for name, parameter in base.named_parameters()}
        base.float()
        layer.merge(safe_merge=False)
        for name, parameter in base.named_parameters():
            parameter.data = parameter.data.to(dtypes[name])


def _correct_tie(model: PreTrainedModel) -> None:
    """A head or an embedding that was trained whole is no longer the other one: config.json must not say so."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and embedding is not None and not _is_same(head.weight, embedding.weight):
        model.config.tie_word_embeddings = False


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True for one table seen twice; weights that wait elsewhere come as a new tensor each time."""
    return one is other or torch.equal(one, other)
