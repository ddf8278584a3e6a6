"""Which decoder layers recompute their activations in the backward pass.

The first ones do. Backward runs from the last layer to the first and frees each layer's saved activations
on its way, so when a layer at the front recomputes, everything behind it is already gone. A recomputing layer
at the back would add one live layer to the moment when all other activations still exist: the peak.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from adaptft.errors import TrainingError
from adaptft.plans import Checkpointing
from adaptft.training.offloading import HostStore


def recomputing_layers(decision: Checkpointing) -> range:
    """Indices of the decoder layers that recompute.

    >>> list(recomputing_layers(Checkpointing(layers=2, of=4)))
    [0, 1]
    """
    return range(min(decision.layers, decision.of))


def decoder_layers(model: Any) -> list[Any]:
    """The model's decoder layers, first to last: those that transformers can checkpoint."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def apply_checkpointing(model: Any, decision: Checkpointing, *, has_dropout: bool) -> int:
    """Make exactly the planned layers recompute, without reentrant autograd; returns how many.

    Adapters on a frozen base need no input gradients for this: the non-reentrant form tracks the adapters
    themselves. The random state is stashed only where dropout would make the second pass differ.

    Raises:
        TrainingError: the model's decoder layers are not those the plan counted.
    """
    layers = decoder_layers(model)
    if decision.layers and len(layers) != decision.of:
        raise TrainingError(
            f"The plan counts {decision.of} decoder layers; transformers can recompute {len(layers)} in this model.",
            fix="Train with --gradient_checkpointing false, or plan again for this model.",
        )
    chosen = recomputing_layers(decision)
    recompute = partial(checkpoint, use_reentrant=False, preserve_rng_state=has_dropout)
    store = HostStore() if decision.offload else None
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index in chosen
        if index in chosen:
            layer._gradient_checkpointing_func = (
                recompute if store is None else partial(store.checkpoint, inner=recompute, is_first=index == 0)
            )
    return len(chosen)


def compile_layers(model: Any) -> int:
    """Compile each decoder layer for itself (they share one graph); returns how many.

    Checkpointing stands around the compiled call, so both work together.
    """
    layers = decoder_layers(model)
    for layer in layers:
        layer.compile()
    return len(layers)


def has_dropout(model: nn.Module) -> bool:
    """True where some layer drops activations out in training."""
    return any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()) or any(
        getattr(m, "attention_dropout", 0.0) for m in model.modules()
    )
