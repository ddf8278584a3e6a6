"""What a training plan decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaptft.errors import RequestError
from adaptft.plans.common import Decision, Dtype
from adaptft.requests import TrainType


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The four things people call precision."""

    weights: Dtype
    compute: Literal["fp32", "fp16", "bf16", "fp8"]
    fp32_matmul: Literal["tf32", "ieee"]
    loss_scaling: bool = False

    @property
    def autocast(self) -> Dtype:
        """The 16-bit (or 32-bit) type of everything that is not an FP8 matmul."""
        return "bf16" if self.compute == "fp8" else self.compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What is trained and how the rest is stored; the ``lora_`` fields are unused for ``full``."""

    train_type: TrainType
    base_storage: Literal["fp32", "fp16", "bf16", "nf4", "fp8"]
    double_quant: bool = False
    lora_rank: int = 0
    lora_alpha: float = 0.0
    lora_dropout: float = 0.0
    target_modules: tuple[str, ...] = ()
    """Names of linear layers, as PEFT takes them in a list (endings of module names)."""
    target_regex: str | None = None
    modules_to_save: tuple[str, ...] = ()
    use_rslora: bool = False
    use_dora: bool = False
    skipped_modules: tuple[str, ...] = ()
    """Linear layers that stay in 16 bit and without an adapter (head, routers, one-output gates)."""


SHARDED = frozenset({"zero2", "zero3", "fsdp2"})
"""Strategies in which each rank keeps its part of weights, gradients and optimizer states; zero3 is fsdp2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the model lives; ``device_map`` as transformers takes it, None for sharded strategies."""

    strategy: Literal["cpu", "single", "ddp", "zero2", "zero3", "fsdp2", "layer_split"]
    gpu_indices: tuple[int, ...] = ()
    """GPUs in use on each machine."""
    device_map: dict[str, int | str] | None = None
    nodes: int = 1
    """Machines, alike in their GPUs."""
    sequence_parallel_size: int = 1
    """Ranks that share each row's tokens among themselves."""

    @property
    def num_gpus(self) -> int:
        """GPUs in use on all machines; 0 on the CPU."""
        return len(self.gpu_indices) * self.nodes

    @property
    def data_parallel_size(self) -> int:
        """Ranks, or groups of ranks, that see different rows; on CPUs each machine is one."""
        if self.strategy == "cpu":
            return self.nodes
        return 1 if self.strategy in ("single", "layer_split") else self.num_gpus // self.sequence_parallel_size

    @property
    def num_ranks(self) -> int:
        """Processes of the run on all machines."""
        return self.data_parallel_size * self.sequence_parallel_size

    @property
    def shares_rows(self) -> bool:
        """True where several ranks compute the tokens of one row."""
        return self.sequence_parallel_size > 1

    @property
    def is_sharded(self) -> bool:
        """True where each rank holds a part of every weight: fused adapters would join whole ones on all of them."""
        return self.strategy in SHARDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences in a micro-batch and in an optimizer step. The product is checked here, once for all.

    Raises:
        RequestError: micro x accumulation x data-parallel is not the global batch.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_size: int
    global_batch_size: int
    eval_batch_size: int
    max_length: int
    packing: bool

    def __post_init__(self) -> None:
        product = self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_size
        if product != self.global_batch_size:
            raise RequestError(
                f"global_batch_size {self.global_batch_size} is not per_device_train_batch_size "
                f"{self.micro_batch_size} x gradient_accumulation_steps {self.gradient_accumulation_steps} "
                f"x {self.data_parallel_size} data-parallel ranks.",
                fix="Leave one of the three out: adaptft fills it in.",
            )

    @property
    def micro_batch_tokens(self) -> int:
        """Most tokens of a micro-batch."""
        return self.micro_batch_size * self.max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """How many of the decoder layers recompute their activations in the backward pass."""

    layers: int
    of: int
    offload: bool = False
    """The inputs that these layers keep wait in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """``varlen``: torch's variable-length kernel; ``sdpa``: a block-diagonal mask; ``eager``: plain matmuls."""

    implementation: Literal["varlen", "sdpa", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKernel:
    """``chunked``: head and cross-entropy fused, ``chunk_tokens`` rows of logits at a time; ``full``: all at once."""

    kernel: Literal["chunked", "full"]
    chunk_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """AdamW and its schedule."""

    name: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]
    learning_rate: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    max_grad_norm: float
    lr_scheduler_type: str
    warmup_steps: int
    stochastic_rounding: bool = False
    """16-bit weights are rounded at random, right on average: small updates count as their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When things happen, in optimizer steps; 0 means never.

    ``max_steps`` is what a run does; ``num_train_epochs`` says how many passes over the data that is.
    ``held_out_ratio`` is the share of the rows that is evaluated and not trained on.
    """

    max_steps: int
    num_train_epochs: float
    held_out_ratio: float
    eval_steps: int
    save_steps: int
    logging_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """Whether each decoder layer is compiled by torch.compile."""

    enabled: bool


FUSED_MLP_LAYERS = ("gate_proj", "up_proj", "down_proj")
"""Layers that are one operator where adapters are fused and all three of them have one."""
MLP_TILE_TOKENS = 4096
"""Tokens that a tiled MLP takes at a time."""
SMALLEST_FUSED_RANK = 16
"""Tensor cores multiply tiles of 16."""
WEIGHTS_ROUNDED_AT_A_TIME = 1 << 26
"""Of a base that is rounded for what its layers get; 6 bytes each are there beside the layer meanwhile."""
FP8_ALIGNMENT = 16
"""cuBLAS takes FP8 operands whose dimensions are multiples of this."""


def fused_rank(rank: int) -> int:
    """The rank to which fused operators pad adapters with zeros.

    >>> fused_rank(8), fused_rank(24)
    (16, 32)
    """
    return max(SMALLEST_FUSED_RANK, 1 << (rank - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterKernels:
    """How layers with adapters run: by operators that fuse adapter, frozen matmul and activation, or as PEFT's."""

    fused: bool
    transposed_copy: bool = False
    """FP8 weights are kept a second time, transposed, rather than transposed in each backward pass."""
    mlp_tile_tokens: int = 0
    """MLPs take so many tokens at a time and keep nothing but their input; 0: all at once."""
    calibration_tokens: int = 0
    """FP8 weights are rounded by what so many tokens of the data put into their layers; 0: each to the nearest."""
    by_layer: bool = False
    """A base in FP8 waits on the host, and each layer comes to the GPU to be converted; False: all comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All decisions of a training plan."""

    precision: Decision[Precision]
    method: Decision[Method]
    placement: Decision[Placement]
    batch: Decision[Batch]
    checkpointing: Decision[Checkpointing]
    attention: Decision[Attention]
    loss: Decision[LossKernel]
    optimizer: Decision[Optimizer]
    schedule: Decision[Schedule]
    compile: Decision[Compile]
    adapters: Decision[AdapterKernels]
