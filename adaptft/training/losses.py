"""The planned loss as the model's forward: summed over the trained tokens of a micro-batch.

The sum, not the mean, since the number it is divided by belongs to the whole accumulation window. Inside
``forward``, since whatever wraps a model (autocast, DDP, PEFT) wraps that; and the head's part of it inside the
head's, where a head in shards is whole. Labels come shifted: ``labels[t]`` is what the logits at ``t`` are to predict,
-100 where nothing is.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from adaptft.errors import TrainingError
from adaptft.kernels.linear_cross_entropy import IGNORED, chunked_cross_entropy
from adaptft.plans import LossKernel

# transformers' names for a constant on the logits: (attribute of the config, exponent)
LOGIT_SCALES = (("logits_scaling", -1), ("logit_scale", 1))
AGREEMENT = 0.02
"""Largest relative difference between two 16-bit computations of the same loss."""


def install_loss(model: Any, kernel: LossKernel, compute_dtype: torch.dtype) -> None:
    """Make ``model(input_ids=..., labels=..., ...)`` return ``{"loss": sum}`` by the planned kernel.

    With ``by_logits=True`` it is the loss of the model's own logits. ``num_trained``, how many tokens are trained,
    spares the host a wait for the GPU to count them.

    Args:
        model: the causal language model itself, below PEFT.
        compute_dtype: the type in which the head's matmul runs.
    """

    planned = _chunked_loss if kernel.kernel == "chunked" else _full_loss

    def forward(
        self: Any, *, labels: Tensor, num_trained: int | None = None, by_logits: bool = False, **inputs: Any
    ) -> dict[str, Tensor]:
        return {"loss": (_full_loss if by_logits else planned)(self, labels, num_trained, _given(inputs))}

    # A bound method and not a closure over the model: accelerate unbinds it to put autocast around it.
    model.forward = MethodType(forward, model)
    if kernel.kernel == "chunked":
        softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        _give_loss(_trained_head(model), kernel.chunk_tokens, softcap, compute_dtype)


def _give_loss(head: Any, chunk_tokens: int, softcap: float | None, compute_dtype: torch.dtype) -> None:
    """Make ``head(hidden, labels=...)`` the summed loss; without labels it stays the head."""
    plain = head.forward

    def forward(self: Any, hidden: Tensor, *, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            logits: Tensor = plain(hidden)
            return logits
        return chunked_cross_entropy(
            hidden.to(compute_dtype), self.weight, labels, chunk_tokens=chunk_tokens, softcap=softcap
        )

    head.forward = MethodType(forward, head)


def _chunked_loss(model: Any, labels: Tensor, num_trained: int | None, inputs: dict[str, Any]) -> Tensor:
    hidden = model.base_model(**inputs).last_hidden_state
    scale = _logit_scale(model.config.get_text_config())
    if scale != 1.0:
        hidden = hidden * scale
    labels = labels.reshape(-1)
    trained = _trained(labels, num_trained)  # the head is a tenth of a step: prompts need not pass it
    hidden = hidden.reshape(-1, hidden.shape[-1]).index_select(0, trained)
    loss: Tensor = model.get_output_embeddings()(hidden, labels=labels.index_select(0, trained))
    return loss


def _trained(labels: Tensor, num_trained: int | None) -> Tensor:
    """Where ``labels`` (tokens,) has labels."""
    is_trained = labels != IGNORED
    found = is_trained.nonzero() if num_trained is None else torch.nonzero_static(is_trained, size=num_trained)
    return found.squeeze(1)


def _full_loss(model: Any, labels: Tensor, _: int | None, inputs: dict[str, Any]) -> Tensor:
    logits = type(model).forward(model, **inputs).logits
    return cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )


def _given(inputs: dict[str, Any]) -> dict[str, Any]:
    """PEFT passes every argument it knows; those that nobody gave are None."""
    return {name: value for name, value in inputs.items() if value is not None} | {"use_cache": False}


def _trained_head(model: Any) -> Any:
    head = model.get_output_embeddings()
    if hasattr(head, "modules_to_save"):  # PEFT trains a copy of a whole module
        head = head.modules_to_save[head.active_adapter]
    return head


def _logit_scale(config: Any) -> float:
    scale = 1.0
    for name, exponent in LOGIT_SCALES:
        scale *= (getattr(config, name, None) or 1.0) ** exponent
    return float(scale)


@torch.no_grad()
def check_loss(model: Any, inputs: dict[str, Any]) -> None:
    """Compare the installed loss with the model's own logits on a few tokens.

    Architectures put scales, caps and biases on their logits; one that the chunked kernel does not know must
    not train on a wrong loss.

    Raises:
        TrainingError: they disagree.
    """
    was_training = model.training
    model.eval()
    planned = model(**inputs)["loss"].item()
    own = model(**inputs, by_logits=True)["loss"].item()
    model.train(was_training)
    if abs(planned - own) > AGREEMENT * max(abs(own), 1e-3):
        raise TrainingError(
            f"The chunked loss of {type(model).__name__} is {planned:.4f} where its own logits give {own:.4f}.",
            fix="This architecture changes its logits in a way adaptft does not know: please report it.",
        )
