"""Memory of what a micro-batch leaves behind on its way through the model, from shapes alone.

Symbols: T tokens of a micro-batch on one device, h hidden size, q and k widths of all query and of all key heads, f
width of the MLP, a query heads, V vocabulary. A layer that keeps its activations saves, in the compiled form and per
token, in 16 bit: the inputs of the layer and of its second half and both norms' outputs (8h bytes), queries and
attention output (4q), keys and values (4k), gate, up and their product (6f; where the MLP is one fused operator, 4f,
and none of them where it goes through the tokens in tiles),
and the log-sum-exp of attention (4a). With norms on queries and keys, their inputs as well (2q + 2k). Checked on an
H200: 159.4 kB a token and layer measured for Qwen2.5-7B's shape, 159.0 by the formula (see benchmarks/results).
Ranks that share rows have T over their number each; attention then meets the keys and values of all T.
"""

from __future__ import annotations

from adaptft.facts import ModelShape
from adaptft.plans import fused_rank
from adaptft.policy.workload import Workload

QK_NORM_FAMILIES = frozenset({"qwen3", "qwen3_moe", "gemma3_text"})
OFFLOADED_IN_FLIGHT = 2
"""Inputs of checkpointed layers that are on the device at a time when they wait in host memory: one, and the next."""


def layer_activation_bytes(work: Workload) -> int:
    """What one layer that keeps its activations saves, for a whole micro-batch."""
    return passed_bytes(work) - _remade_in_tiles(work)


def passed_bytes(work: Workload) -> int:
    """The same, whether the MLP goes through tokens in tiles or not: what the layer's time grows with."""
    return work.device_tokens * _bytes_per_token(work) + _scores_bytes(work)


def _remade_in_tiles(work: Workload) -> int:
    return 2 * _activation_size(work) * _mlp_width(work.model) * work.device_tokens if work.mlp_tile_tokens else 0


def _bytes_per_token(work: Workload) -> int:
    model, size = work.model, _activation_size(work)
    query, key = model.query_size, model.key_value_size
    values = 4 * model.hidden_size + 2 * query + 2 * key + (2 if work.fuses_mlp else 3) * _mlp_width(model)
    if model.model_type in QK_NORM_FAMILIES:
        values += query + key
    if work.precision.weights == "fp32" and size == 2:  # autocast keeps the residual stream in FP32
        values += 2 * model.hidden_size
    if not work.compiled:  # norms in FP32 and silu(gate) are kept as well
        values += 4 * model.hidden_size + _mlp_width(model)
    elif work.method.train_type == "full" and work.precision.compute == "fp8":
        # Inputs are kept in one byte a value (attention's output beside what attention keeps), no product of the MLP.
        values += query // 2 - model.hidden_size - _mlp_width(model)
    return size * values + 4 * model.num_attention_heads + _adapter_bytes_per_token(work)


def _activation_size(work: Workload) -> int:
    return 4 if work.precision.compute == "fp32" else 2


def _mlp_width(model: ModelShape) -> int:
    """Width of the MLP that a token passes: the dense one, or its experts together, averaged over the layers."""
    if model.moe is None:
        return model.intermediate_size
    experts = model.moe.experts_per_token * model.moe.expert_intermediate_size + model.moe.shared_intermediate_size
    moe_layers = len(model.moe.layers)
    return (moe_layers * experts + (model.num_layers - moe_layers) * model.intermediate_size) // model.num_layers


def _adapter_bytes_per_token(work: Workload) -> int:
    """Outputs of the adapters' first halves: rank values for each adapted matrix of a layer."""
    if work.targets is None:
        return 0
    rank = work.method.lora_rank
    if work.decisions.adapters.value.fused:
        rank = fused_rank(rank)
    return 2 * rank * max(1, work.targets.num_modules // work.model.num_layers)


def _scores_bytes(work: Workload) -> int:
    """The attention scores that eager attention keeps: 5 bytes a score (Korthikanti et al. 2022, 5as^2b)."""
    if work.decisions.attention.value.implementation != "eager":
        return 0
    return 5 * work.model.num_attention_heads * work.batch.max_length**2 * work.batch.micro_batch_size


def saved_activations(work: Workload) -> int:
    """Kept layers whole, checkpointed layers by their input, and what stands before and behind the layers.

    The embeddings' output, the last norm's input and output, the trained rows of it that meet the head, their
    gradient, and the gradient of all rows: six hidden states (measured on an H200 at three widths).
    """
    tokens, size = work.device_tokens, _activation_size(work)
    state = tokens * work.model.hidden_size * size
    kept = work.checkpointing.of - work.checkpointing.layers
    inputs = (OFFLOADED_IN_FLIGHT if work.checkpointing.offload else work.checkpointing.layers) * state
    return kept * layer_activation_bytes(work) + inputs + 6 * state


def backward_transients(work: Workload) -> int:
    """Gradients inside one layer: of gate, up and product, and of two hidden states; and an unpacked weight.

    The fused MLP makes the product again, and in FP8 what it sends on has one byte a value; in tiles it makes gate and
    up again as well, all of it for one tile. Where the last layer is checkpointed too, its activations are made again
    before anything is let go.
    """
    tokens, size = work.device_tokens, _activation_size(work)
    width = _mlp_width(work.model) * (min(tokens, work.mlp_tile_tokens) or tokens)
    mlp = 3 * size * width
    if work.fuses_mlp:
        mlp = (size + 3 * (1 if work.precision.compute == "fp8" else size)) * width
    if work.mlp_tile_tokens:
        mlp += 2 * size * width
    gradients = mlp + 2 * tokens * size * work.model.hidden_size
    if work.sequence_parallel_size > 1:  # a whole row's keys and values, and their gradients
        gradients += 4 * work.batch.micro_batch_tokens * size * work.model.key_value_size
    every_layer = work.checkpointing.layers == work.checkpointing.of
    return gradients + _unpacked_weight(work) + (layer_activation_bytes(work) if every_layer else 0)


def _unpacked_weight(work: Workload) -> int:
    """The widest weight as one matmul takes it: NF4 unpacked, FP8 transposed; gate and up are one where fused."""
    widest = max(row.in_features * row.out_features for row in work.model.linears if row.kind != "head")
    widest *= 2 if work.fuses_mlp else 1
    fp8 = work.precision.compute == "fp8"
    if work.method.base_storage == "nf4":
        return widest * (1 if fp8 else 2)
    return widest if fp8 and not work.decisions.adapters.value.transposed_copy else 0


def logits_bytes(work: Workload) -> int:
    """A chunk of logits and its gradient; without chunks 2 + 4 + 4 + 2 bytes a logit of the whole micro-batch."""
    vocabulary, tokens = work.model.vocab_size, work.device_tokens
    if work.decisions.loss.value.kernel == "full":
        return 12 * vocabulary * tokens
    rows = min(work.decisions.loss.value.chunk_tokens, tokens)
    eager = 3 if not work.compiled else 0  # softmax, one-hot and their difference, in FP32
    head = work.model.embedding_parameters * 2 if work.method.train_type == "full" else 0  # gradient of the head
    return rows * vocabulary * (2 * _activation_size(work) + 4 * eager) + head
