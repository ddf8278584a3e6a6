"""Over how many GPUs the layers of a served model can be cut.

Source: vLLM 0.32, ``config/model.py`` (attention heads must divide) and the attention layers of its models
(KV heads are divided, or copied where there are fewer of them than GPUs; MLP columns are divided).
"""

from __future__ import annotations

from adaptft.errors import RequestError
from adaptft.facts import ModelShape

_MLP_KINDS = ("mlp", "expert", "shared_expert")


def sizes(model: ModelShape) -> tuple[int, ...]:
    """All tensor-parallel sizes that ``model`` allows, smallest first."""
    return tuple(size for size in _divisors(model.num_attention_heads) if _divides_rest(model, size))


def _divides_rest(model: ModelShape, size: int) -> bool:
    kv_heads = model.num_key_value_heads
    kv_heads_fit = kv_heads % size == 0 or size % kv_heads == 0
    return kv_heads_fit and all(width % size == 0 for width in _mlp_widths(model))


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _mlp_widths(model: ModelShape) -> tuple[int, ...]:
    """Inner widths of all kinds of MLP in the model (experts have their own)."""
    down = (linear for linear in model.linears if linear.kind in _MLP_KINDS)
    return tuple(sorted({linear.in_features for linear in down if linear.out_features == model.hidden_size}))


def check_size(model: ModelShape, size: int, num_gpus: int) -> None:
    """Refuse a ``size`` that the model's shape or the machine forbids.

    Raises:
        RequestError: it does not divide the heads (they are named, and the sizes that do), or there are
            fewer GPUs.
    """
    allowed = sizes(model)
    usable = " or ".join(str(n) for n in allowed if n <= max(num_gpus, 1))
    if size not in allowed:
        heads = model.num_attention_heads
        whole = ", ".join(map(str, _divisors(heads)))
        raise RequestError(
            f"tensor_parallel_size {size} does not divide {_counts(model)} of {model.name}.",
            fix=f"{heads} is divided by {whole}; with its KV heads, its MLP and {num_gpus} GPUs take {usable}.",
        )
    if size > max(num_gpus, 1):
        raise RequestError(
            f"tensor_parallel_size {size} needs {size} GPUs; this machine has {num_gpus}.",
            fix=f"Take {usable}.",
        )


def kv_heads_per_gpu(model: ModelShape, size: int) -> int:
    """KV heads that each of ``size`` GPUs holds; at least one, copied where there are fewer heads than GPUs."""
    return max(1, model.num_key_value_heads // size)


def describe_kv_heads(model: ModelShape, size: int) -> str:
    """How the KV heads lie on the GPUs, in words."""
    heads = model.num_key_value_heads
    if size == 1:
        return f"all {heads} KV heads on it" if heads > 1 else "its KV head on it"
    if heads >= size:
        return f"{heads} KV heads divided, {heads // size} each"
    return f"{'the single KV head' if heads == 1 else f'{heads} KV heads'} replicated, one on each GPU"


def _counts(model: ModelShape) -> str:
    widths = " and ".join(map(str, _mlp_widths(model)))
    return f"the {model.num_attention_heads} attention heads ({model.num_key_value_heads} KV, MLP {widths})"
