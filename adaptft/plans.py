"""What is decided. A plan is a value: printed, saved as plan.json, compared, and then obeyed.

Every part stands in a ``Decision`` with the reason and with who took it: ``policy`` or ``user``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from adaptft.errors import RequestError
from adaptft.facts import DatasetShape, Machine, ModelShape
from adaptft.requests import (
    ExportFormat,
    ExportRequest,
    InferBackend,
    KvCacheDtype,
    ServeRequest,
    TrainRequest,
    TrainType,
)

T = TypeVar("T")
Dtype = Literal["fp32", "fp16", "bf16"]
Residence = Literal["twice", "once", "by_layer"]
"""How often host memory holds a model; by_layer: it stays on disk, and a layer visits memory at a time."""
DTYPE_NAMES: dict[Dtype, str] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""A plan's words for types in torch's, which checkpoints, vLLM and ``torch_dtype`` use too."""
SHORT_DTYPES: dict[str, Dtype] = {name: short for short, name in DTYPE_NAMES.items()}
Source = Literal["policy", "user"]


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """A value, why it was taken, and by whom."""

    value: T
    reason: str
    source: Source = "policy"


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
SMALLEST_FUSED_RANK = 16
"""Tensor cores multiply tiles of 16."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Peak bytes on one device by part. ``peak_bytes`` is allocated memory at the worst moment."""

    weights_bytes: int
    adapters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    logits_bytes: int
    workspace_bytes: int
    framework_bytes: int
    capacity_bytes: int
    moment: Literal["forward", "backward", "optimizer", "load"] = "backward"
    """The worst moment; parts that do not live then are zero."""

    @property
    def peak_bytes(self) -> int:
        """Allocated at the worst moment: everything but the framework's own share."""
        states = self.weights_bytes + self.adapters_bytes + self.gradients_bytes + self.optimizer_bytes
        return states + self.activations_bytes + self.logits_bytes + self.workspace_bytes

    @property
    def needed_bytes(self) -> int:
        """What the device must have free: the peak, and CUDA's context and the allocator's slack."""
        return self.peak_bytes + self.framework_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Predicted speed; ``mfu`` counts the model's FLOPs against the dense peak of the compute type."""

    step_seconds: float
    tokens_per_second: float
    mfu: float | None
    total_seconds: float
    waiting_seconds: float = 0.0
    """Of a step: collectives that arithmetic does not hide."""
    communication_seconds: float = 0.0
    """Of a step: all collectives, hidden or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Money; only where a price is known."""

    usd_per_gpu_hour: float
    total_usd: float
    price_source: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An option that was weighed and not taken; ``is_way_out`` marks a leaner wish that would fit."""

    option: str
    reason: str
    is_way_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A complete training plan: inputs, decisions, predictions."""

    machine: Machine
    model: ModelShape
    dataset: DatasetShape
    request: TrainRequest
    decisions: Decisions
    memory: MemoryEstimate
    speed: SpeedEstimate | None = None
    cost: CostEstimate | None = None
    rejected: tuple[Rejected, ...] = ()
    warnings: tuple[str, ...] = ()
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an export may be from its source, over trained tokens of held-out rows."""

    loss_rise: float
    """Nats a token: its e-th power is how much the perplexity may grow."""
    divergence: float
    """Mean KL(source || export) of the next-token distributions in nats."""
    top1: float
    """Share of the tokens where both find the same one likeliest, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPlan:
    """A complete export plan."""

    request: ExportRequest
    model: ModelShape
    format: ExportFormat
    device: Literal["cuda", "cpu"]
    compute_dtype: Dtype
    """Type of the weights while they are merged or compressed."""
    residence: Residence
    saved_dtype: Dtype
    """Type of everything that is not compressed, on disk."""
    group_size: int | None
    symmetric: bool
    """False where each group of weights has a zero point beside its scale."""
    ignored_modules: tuple[str, ...]
    num_compressed_modules: int
    """Linear layers that the model's shape says will be compressed; the report counts what was."""
    num_calibration_rows: int
    max_length: int
    source_bytes: int
    predicted_bytes: int
    bits_per_weight: float
    """Of the compressed layers, their scales and zero points counted; 16 where nothing is compressed."""
    limits: Limits
    predicted_seconds: float | None
    """None for machines where no export was measured yet."""
    servable_on: str
    """Which GPUs can serve the format, in words."""
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """A complete serving plan; ``adaptft serve --print`` shows the command made from it."""

    request: ServeRequest
    model: ModelShape
    model_path: str
    served_model_name: str
    backend: InferBackend
    python: str
    """The interpreter that runs the engine (its own environment, for vLLM)."""
    device: Literal["cuda", "cpu"]
    dtype: Dtype
    max_model_len: int
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float | None = None
    adapters: dict[str, str] = field(default_factory=dict)
    max_lora_rank: int | None = None
    max_loras: int = 0
    """Adapters that one batch may mix; the slots are allocated at ``max_lora_rank``."""
    kv_cache_dtype: KvCacheDtype = "auto"
    kv_cache_bytes_per_token: int = 0
    kv_cache_bytes: int = 0
    """Memory left for the KV cache; both are of one device."""
    gpu_indices: tuple[int, ...] = ()
    cpu_threads: int | None = None
    max_num_seqs: int | None = None
    generation_config: str | None = None
    """Folder whose generation_config.json holds all stop tokens; None: the model's own."""
    chat_template: str | None = None
    """Template file that replaces the model's own."""
    tool_parser: str | None = None
    """The engine's parser of tool calls; None where the chat template has none."""
    engine_version: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
