"""Peak memory of a training step on one device, from shapes alone.

Symbols: T tokens in a micro-batch, h hidden size, q and k widths of all query and of all key heads, f width of the
MLP, a query heads, V vocabulary, P parameters. A layer that keeps its activations saves, in the compiled form and
per token, in 16 bit: the inputs of the layer and of its second half and both norms' outputs (8h bytes), queries and
attention output (4q), keys and values (4k), gate, up and their product (6f; where the MLP is one fused operator, 4f),
and the log-sum-exp of attention (4a). With norms on queries and keys, their inputs as well (2q + 2k). Checked on an
H200: 159.4 kB a token and layer measured for Qwen2.5-7B's shape, 159.0 by the formula (see benchmarks/results).

The peak is the largest of several moments, not a sum over all parts: loading, the end of the forward pass (all saved
activations and a chunk of logits), the start of the backward pass (all saved activations, the last layer's
gradients), its end (all gradients), and the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaptft.facts import LinearShape, ModelShape
from adaptft.plans import MemoryEstimate, Method, Precision, fused_rank
from adaptft.policy.workload import Workload
from adaptft.units import GiB, MiB

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "nf4": 0.5}
"""Bytes a weight as stored; FP8 may keep each weight twice (cuBLAS wants the transpose for the backward pass)."""
QK_NORM_FAMILIES = frozenset({"qwen3", "qwen3_moe", "gemma3_text"})
MATMUL_WORKSPACE = 96 * MiB
"""What cuBLAS sets aside on Hopper, as measured; older cards take less."""
OFFLOADED_IN_FLIGHT = 2
"""Inputs of checkpointed layers that are on the device at a time when they wait in host memory: one, and the next."""
SAVED_STATES = {"adamw": 2.0, "adamw_8bit": 2.03, "paged_adamw_8bit": 2.03}
CUDA_CONTEXT_BYTES = 600 * MiB
NCCL_BYTES = 512 * MiB
"""Buffers of a communicator between replicas: 0.2 to 1 GiB as published, not measured here."""
ALLOCATOR_SLACK = 0.04
"""Reserved over allocated, with expandable segments: 1.03 measured where shapes do not change."""
FREE_MARGIN = 0.03
"""Share of the free memory that a plan leaves untouched."""


def estimate_memory(work: Workload, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    """The estimate at the worst moment, loading included; ``capacity_bytes`` is the device's free memory."""
    step = step_memory(work, capacity_bytes, on_gpu=on_gpu)
    loading = _loading_bytes(work)
    return step if loading <= step.peak_bytes else _while_loading(work, loading, capacity_bytes, on_gpu=on_gpu)


def step_memory(work: Workload, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    """The estimate at the worst moment of a step."""
    trained = _trained_bytes(work)
    activations = _saved_activations(work)
    logits = _logits_bytes(work)
    backward = _backward_transients(work)
    accumulates = work.batch.gradient_accumulation_steps > 1
    copies, buckets = _compute_copies(work), _bucket_bytes(work, trained)
    early_gradients = buckets + (trained.gradients if accumulates else 0)
    moments: dict[Literal["forward", "backward", "optimizer"], tuple[int, int, int, int, int]] = {
        # moment: (16-bit copies of weights, gradients, activations, logits, workspace)
        "forward": (copies, early_gradients, activations, logits, MATMUL_WORKSPACE),
        "backward": (copies, early_gradients, activations, 0, backward + MATMUL_WORKSPACE),
        "optimizer": (0, buckets + trained.gradients, 0, 0, _optimizer_workspace(work)),
    }
    moment = max(moments, key=lambda name: sum(moments[name]))
    copies, gradients, activations, logits, workspace = moments[moment]
    weights = stored_bytes(work) + copies
    peak = trained.adapters + trained.optimizer + sum(moments[moment]) + weights - copies
    return MemoryEstimate(
        weights_bytes=weights,
        adapters_bytes=trained.adapters,
        gradients_bytes=gradients,
        optimizer_bytes=trained.optimizer,
        activations_bytes=activations,
        logits_bytes=logits,
        workspace_bytes=workspace,
        framework_bytes=_framework_bytes(work, peak) if on_gpu else int(0.6 * GiB),
        capacity_bytes=capacity_bytes,
        moment=moment,
    )


def _loading_bytes(work: Workload) -> int:
    """A base in FP8 is loaded in 16 bit and converted layer by layer; NF4 is packed while it is read."""
    if work.method.base_storage != "fp8":
        return 0
    widest = max(row.in_features * row.out_features for row in work.model.linears)
    return int(work.model.num_parameters * DTYPE_BYTES[work.precision.weights]) + 2 * widest


def _while_loading(work: Workload, loading: int, capacity_bytes: int, *, on_gpu: bool) -> MemoryEstimate:
    return MemoryEstimate(
        weights_bytes=loading,
        adapters_bytes=0,
        gradients_bytes=0,
        optimizer_bytes=0,
        activations_bytes=0,
        logits_bytes=0,
        workspace_bytes=0,
        framework_bytes=_framework_bytes(work, loading) if on_gpu else int(0.6 * GiB),
        capacity_bytes=capacity_bytes,
        moment="load",
    )


def _framework_bytes(work: Workload, peak_bytes: int) -> int:
    """CUDA's context, what the allocator holds unused, and the buffers of replicas that exchange gradients."""
    buffers = NCCL_BYTES if work.batch.data_parallel_size > 1 else 0
    return CUDA_CONTEXT_BYTES + int(peak_bytes * ALLOCATOR_SLACK) + buffers


def fits(memory: MemoryEstimate) -> bool:
    """True where the need stays below the free memory less the margin."""
    return memory.needed_bytes <= memory.capacity_bytes * (1 - FREE_MARGIN)


def weights_bytes(model: ModelShape, precision: Precision, method: Method) -> int:
    """The model as stored: all in one type, or its linear layers in NF4 or FP8 and the rest in 16 bit."""
    plain = DTYPE_BYTES[precision.weights]
    if method.base_storage not in ("nf4", "fp8"):
        return int(model.num_parameters * plain)
    stored = [row for row in model.linears if _is_converted(row, method)]
    converted = sum(row.num_weights for row in stored)
    each = _nf4_bytes(method.double_quant) if method.base_storage == "nf4" else DTYPE_BYTES["fp8"]
    scales = 4 * sum(row.out_features * row.count for row in stored) if method.base_storage == "fp8" else 0
    return int((model.num_parameters - converted) * plain + converted * each + scales)


def stored_bytes(work: Workload) -> int:
    """The weights as this run keeps them: FP8 ones, where there is room, a second time transposed."""
    once = weights_bytes(work.model, work.precision, work.method)
    if work.method.base_storage != "fp8" or not work.decisions.adapters.value.transposed_copy:
        return once
    return once + sum(row.num_weights for row in work.model.linears if _is_converted(row, work.method))


def _compute_copies(work: Workload) -> int:
    """Autocast keeps a 16-bit copy of each trained FP32 weight from its forward to its backward pass."""
    if work.method.train_type != "full" or work.precision.weights != "fp32" or work.precision.autocast == "fp32":
        return 0
    return 2 * (work.model.num_parameters - (_in_fp8(work) if work.precision.compute == "fp8" else 0))


def _in_fp8(work: Workload) -> int:
    """Weights of the layers that are trained in FP8: quantised for each matmul, so that no copy of them lasts."""
    return sum(row.num_weights for row in work.model.linears if _is_converted(row, work.method))


def _bucket_bytes(work: Workload, trained: _TrainedBytes) -> int:
    """DistributedDataParallel's buckets: as large as all gradients, and there from the first step to the last.

    Source: its option gradient_as_bucket_view, which would save them, is off where transformers makes it.
    """
    return trained.gradients if work.batch.data_parallel_size > 1 else 0


def _is_converted(row: LinearShape, method: Method) -> bool:
    """Linear layers with their own module; fused experts, heads and routers stay in 16 bit."""
    return row.is_linear_module and row.kind not in ("head", "router") and row.name not in method.skipped_modules


def _nf4_bytes(double_quant: bool) -> float:
    """4 bits and a scale every 64 weights: 4 bytes, or 1 byte and 4 bytes more every 256 scales (QLoRA paper)."""
    return 0.5 + (1 / 64 + 4 / (64 * 256) if double_quant else 4 / 64)


@dataclass(frozen=True, slots=True)
class _TrainedBytes:
    adapters: int
    gradients: int
    optimizer: int


def _trained_bytes(work: Workload) -> _TrainedBytes:
    """Adapters are FP32 with FP32 states; whole models have gradients and states in their weights' type."""
    if work.method.train_type == "full":
        count, size = work.model.num_parameters, DTYPE_BYTES[work.precision.weights]
        states = (
            2 * size
            if work.decisions.optimizer.value.name == "adamw"
            else SAVED_STATES[work.decisions.optimizer.value.name]
        )
        return _TrainedBytes(0, int(count * size), int(count * states))
    assert work.targets is not None
    count = work.targets.trainable_parameters(work.method.lora_rank, use_dora=work.method.use_dora)
    count += _saved_modules(work)
    states = 8 if work.decisions.optimizer.value.name == "adamw" else SAVED_STATES[work.decisions.optimizer.value.name]
    return _TrainedBytes(4 * count, 4 * count, int(states * count))


def gradient_bytes(work: Workload) -> int:
    """All gradients of a step: what replicas exchange."""
    return _trained_bytes(work).gradients


def _saved_modules(work: Workload) -> int:
    """Weights of ``modules_to_save``, which are copied and trained whole (embeddings and head, as a rule)."""
    names = set(work.method.modules_to_save)
    rows = sum(row.num_weights for row in work.model.linears if row.name in names)
    return rows + (work.model.embedding_parameters if "embed_tokens" in names else 0)


def layer_activation_bytes(work: Workload) -> int:
    """What one layer that keeps its activations saves, for a whole micro-batch."""
    return work.batch.micro_batch_tokens * _bytes_per_token(work) + _scores_bytes(work)


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
        # Norms' outputs and the MLP's product are quantised again in the backward pass, with the scales they had.
        # Checked on an H200: 11.1 GiB less than in bf16 measured for 28 layers and 8192 tokens, 11.2 by this.
        values -= 2 * model.hidden_size + _mlp_width(model)
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


def _saved_activations(work: Workload) -> int:
    """Kept layers whole, checkpointed layers by their input, and what stands before and behind the layers.

    The embeddings' output, the last norm's input and output, the trained rows of it that meet the head, their
    gradient, and the gradient of all rows: six hidden states (measured on an H200 at three widths).
    """
    tokens, size = work.batch.micro_batch_tokens, _activation_size(work)
    state = tokens * work.model.hidden_size * size
    kept = work.checkpointing.of - work.checkpointing.layers
    inputs = (OFFLOADED_IN_FLIGHT if work.checkpointing.offload else work.checkpointing.layers) * state
    return kept * layer_activation_bytes(work) + inputs + 6 * state


def offloaded_bytes(work: Workload) -> int:
    """Host memory for the inputs of checkpointed layers that wait there."""
    state = work.batch.micro_batch_tokens * work.model.hidden_size * _activation_size(work)
    return work.checkpointing.layers * state if work.checkpointing.offload else 0


def _backward_transients(work: Workload) -> int:
    """Gradients inside one layer: of gate, up and product, and of two hidden states; and an unpacked weight.

    The fused MLP makes the product again, and in FP8 what it sends on has one byte a value. Where the last layer is
    checkpointed too, its activations are made again before anything is let go.
    """
    tokens, size = work.batch.micro_batch_tokens, _activation_size(work)
    width = _mlp_width(work.model) * tokens
    mlp = 3 * size * width
    if work.fuses_mlp:
        mlp = (size + 3 * (1 if work.precision.compute == "fp8" else size)) * width
    gradients = mlp + 2 * tokens * size * work.model.hidden_size
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


def _logits_bytes(work: Workload) -> int:
    """A chunk of logits and its gradient; without chunks 2 + 4 + 4 + 2 bytes a logit of the whole micro-batch."""
    vocabulary, tokens = work.model.vocab_size, work.batch.micro_batch_tokens
    if work.decisions.loss.value.kernel == "full":
        return 12 * vocabulary * tokens
    rows = min(work.decisions.loss.value.chunk_tokens, tokens)
    eager = 3 if not work.compiled else 0  # softmax, one-hot and their difference, in FP32
    head = work.model.embedding_parameters * 2 if work.method.train_type == "full" else 0  # gradient of the head
    return rows * vocabulary * (2 * _activation_size(work) + 4 * eager) + head


def _optimizer_workspace(work: Workload) -> int:
    """The fused kernel needs none; states kept in 8 bit are updated block by block."""
    return 64 * MiB
