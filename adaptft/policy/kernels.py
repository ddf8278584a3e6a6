"""Attention, loss and compilation: which kernel runs, and why not a faster one."""

from __future__ import annotations

from adaptft.errors import RequestError
from adaptft.facts import Gpu, ModelShape, Software
from adaptft.plans import (
    MLP_TILE_TOKENS,
    AdapterKernels,
    Attention,
    Compile,
    Decision,
    LossKernel,
    Method,
    Precision,
)
from adaptft.policy.architectures import capabilities
from adaptft.requests import TrainRequest
from adaptft.units import MiB, format_bytes

SOFTCAPPED_FAMILIES = frozenset({"gemma2"})
"""Families that cap attention scores, which neither fused kernel does."""
MAX_HEAD_DIM = 256
LOGITS_CHUNK_BYTES = 512 * MiB
SMALLEST_CHUNK, LARGEST_CHUNK = 256, 8192
CALIBRATION_TOKENS = 4096
"""What layers get on average is known well by then."""


def choose_attention(
    gpu: Gpu | None,
    model: ModelShape,
    precision: Precision,
    packing: bool,
    request: TrainRequest,
    *,
    shares_rows: bool = False,
) -> Decision[Attention]:
    """varlen where the GPU, the type and the model allow it; else SDPA with a mask; eager for capped scores.

    Where GPUs share rows it is torch's ring, which stands on SDPA.

    Raises:
        RequestError: varlen is asked for where it cannot run.
    """
    obstacle = _varlen_obstacle(gpu, model, precision)
    if request.attn_impl == "varlen" and obstacle:
        raise RequestError(f"attn_impl varlen cannot be had: {obstacle}.", fix="Use --attn_impl sdpa, or leave it out.")
    if shares_rows:
        return Decision(Attention(implementation="sdpa"), "a ring over the GPUs that share a row, which stands on SDPA")
    if request.attn_impl:
        return Decision(Attention(implementation=request.attn_impl), "asked for", "user")
    if model.model_type in SOFTCAPPED_FAMILIES:
        return Decision(
            Attention(implementation="eager"),
            f"{model.model_type} caps its attention scores, which no fused kernel does",
        )
    if obstacle:
        return Decision(
            Attention(implementation="sdpa"), obstacle + ("; a mask keeps the rows of a pack apart" if packing else "")
        )
    how = (
        "attention inside each row of a pack, without a mask" if packing else "rows one after another, without padding"
    )
    return Decision(Attention(implementation="varlen"), how)


def _varlen_obstacle(gpu: Gpu | None, model: ModelShape, precision: Precision) -> str | None:
    if gpu is None:
        return "the CPU has no variable-length kernel"
    if not capabilities(gpu.compute_capability or (0, 0)).varlen_attention:
        return f"{gpu.name} is older than Ampere, which the variable-length kernel needs"
    if precision.compute == "fp32":
        return "the variable-length kernel takes 16-bit types only"
    if model.head_dim > MAX_HEAD_DIM:
        return f"heads of {model.head_dim} are wider than the {MAX_HEAD_DIM} of the variable-length kernel"
    if model.model_type in SOFTCAPPED_FAMILIES:
        return f"{model.model_type} caps its attention scores"
    return None


def choose_loss(model: ModelShape, *, adapts_head: bool = False) -> Decision[LossKernel]:
    """Chunked, a chunk of logits taking at most 512 MiB in 16 bit; whole where the head carries an adapter."""
    if adapts_head:
        return Decision(
            LossKernel(kernel="full"), "the head has an adapter, which the chunked loss would pass by: whole logits"
        )
    rows = LOGITS_CHUNK_BYTES // (2 * model.vocab_size)
    rows = min(max(rows // 256 * 256, SMALLEST_CHUNK), LARGEST_CHUNK)
    size = format_bytes(2 * rows * model.vocab_size)
    reason = f"so the logits of {model.vocab_size} words take {size} at most in 16 bit, however long the micro-batch"
    return Decision(LossKernel(kernel="chunked", chunk_tokens=rows), reason)


def choose_compile(gpu: Gpu | None, model: ModelShape, software: Software, request: TrainRequest) -> Decision[Compile]:
    """On the GPU each decoder layer is compiled, where Triton is there and the layers are plain."""
    if request.torch_compile is not None:
        return Decision(Compile(enabled=request.torch_compile), "asked for", "user")
    obstacle = _compile_obstacle(gpu, model, software)
    if obstacle:
        return Decision(Compile(enabled=False), obstacle)
    return Decision(
        Compile(enabled=True),
        "up to 1.4 times the speed and less memory, for some seconds at the start",
    )


def _compile_obstacle(gpu: Gpu | None, model: ModelShape, software: Software) -> str | None:
    if gpu is None:
        return "on the CPU compiling takes longer than it saves"
    if "triton" not in software.packages:
        return "the package triton, which compiling needs, is not installed"
    if model.moe is not None:
        return "routed experts change their shapes with every batch"
    return None


def choose_adapter_kernels(
    gpu: Gpu | None,
    method: Method,
    precision: Precision,
    software: Software,
    *,
    transposed_copy: bool,
    tiled_mlp: bool = False,
    is_sharded: bool = False,
    by_layer: bool = False,
) -> Decision[AdapterKernels]:
    """Fused wherever their kernels run and the adapters are plain; FP8 weights once or twice as memory allows.

    Args:
        by_layer: a base in FP8 need not come to the GPU whole before it is converted.
    """
    if method.train_type == "full":
        return Decision(AdapterKernels(fused=False), "no adapters: every weight is trained")
    rounding, how = _rounding(method, by_layer=by_layer)
    by_layer = by_layer and rounding > 0
    obstacle = _fusing_obstacle(gpu, method, precision, software)
    if not obstacle and is_sharded:
        obstacle = "fused operators join weights, which would be whole on every GPU"
    if obstacle:
        plain = AdapterKernels(fused=False, calibration_tokens=rounding, by_layer=by_layer)
        return Decision(plain, f"{obstacle}: PEFT's own layers{how}")
    reason = "each MLP one operator, and layers that share an input: fewer trips through memory"
    tile = MLP_TILE_TOKENS if tiled_mlp else 0
    if tile:
        reason += f"; MLPs take {tile} tokens at a time and compute gate and up twice, to save memory"
    is_kept_twice = transposed_copy and method.base_storage == "fp8"
    if method.base_storage == "fp8":
        reason += "; FP8 weights "
        reason += "twice, as they are and transposed" if is_kept_twice else "once, to save memory"
    kernels = AdapterKernels(
        fused=True, transposed_copy=is_kept_twice, mlp_tile_tokens=tile, calibration_tokens=rounding, by_layer=by_layer
    )
    return Decision(kernels, reason + how)


def _rounding(method: Method, *, by_layer: bool) -> tuple[int, str]:
    """By how many tokens an FP8 base is rounded, and the words for it."""
    if method.base_storage != "fp8":
        return 0, ""
    how = f"; the base rounded for what {CALIBRATION_TOKENS} tokens of the data put into it"
    return CALIBRATION_TOKENS, how + (", layer by layer, so that no GPU holds it in 16 bit" if by_layer else "")


def _fusing_obstacle(gpu: Gpu | None, method: Method, precision: Precision, software: Software) -> str | None:
    if gpu is None:
        return "the operators are for GPUs"
    if not capabilities(gpu.compute_capability or (0, 0)).bf16:
        return f"{gpu.name} is older than Ampere"
    if "triton" not in software.packages:
        return "the package triton is not installed"
    if precision.compute == "fp32":
        return "the operators take 16-bit types"
    if method.lora_dropout:
        return "adapters with dropout"
    return "DoRA" if method.use_dora else None
