"""What is: the machine, the model and the data, as frozen values.

A fact is never a wish. ``None`` means "not known", which is not the same as zero or false.
Sizes are in bytes, rates per second; names carry their unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

LinkPath = Literal["NV", "PIX", "PXB", "PHB", "NODE", "SYS"]
LinearKind = Literal["attention", "mlp", "expert", "shared_expert", "router", "head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A MIG device: ``profile`` such as ``3g.40gb``, cut from ``parent`` (the board's name)."""

    profile: str
    parent: str
    uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device that CUDA can use: a whole board, or one MIG slice of it."""

    index: int
    name: str
    compute_capability: tuple[int, int] | None
    memory_total_bytes: int
    memory_free_bytes: int
    sm_count: int | None = None
    uuid: str | None = None
    ecc_enabled: bool | None = None
    mig: MigSlice | None = None
    pci_bus_id: str | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    power_limit_watts: float | None = None
    numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two GPUs of ``Machine.gpus`` (by index, a < b) reach each other.

    ``path`` is the code of ``nvidia-smi topo -m``; for ``NV`` the number of bonded links is
    ``nvlink_width``. ``peer_access`` is False where the driver refuses peer-to-peer copies.
    """

    a: int
    b: int
    path: LinkPath
    nvlink_width: int | None = None
    nvlink_generation: int | None = None
    peer_access: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The host processor; ``usable_cores`` counts affinity and container quota (0.5 is half a core)."""

    model_name: str
    architecture: str
    logical_cores: int
    physical_cores: int | None
    usable_cores: float
    numa_nodes: int | None = None
    flags: tuple[str, ...] = ()

    @property
    def has_native_bf16(self) -> bool:
        """True where a bf16 matmul is an instruction and not emulated (AVX512-BF16, AMX, Arm BF16)."""
        return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(self.flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory; ``limit_bytes`` is the container's limit, None where there is none."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system that holds ``path``."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions: the interpreter, the driver, CUDA as torch was built for, and installed packages."""

    python: str
    nvidia_driver: str | None = None
    driver_cuda: str | None = None
    torch_cuda: str | None = None
    packages: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedAccelerator:
    """Hardware that was recognised and that adaptft cannot use yet."""

    vendor: Literal["amd", "ascend", "metax", "intel", "apple", "other"]
    name: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The rates that a device reaches at best, whoever measured them; ``adaptft bench`` does.

    Of one of the machine's GPUs (all are taken to be alike), or of its CPU. Keys of ``matmul_flops`` and
    ``peak_flops`` are what is multiplied: fp32, tf32, fp16, bf16, fp8.
    """

    matmul_flops: dict[str, float]
    """FLOP/s that large matmuls of a model's shapes reach."""
    memory_bytes_per_second: float
    """Read and written together."""
    source: str
    """Who says so, in words: "measured here on 2026-11-30 by adaptft bench"."""
    device: Literal["cuda", "cpu"] = "cuda"
    peak_flops: dict[str, float] = field(default_factory=dict)
    """Dense peaks, where they are known: what a utilisation is counted against."""
    attention_flops: float | None = None
    """FLOP/s of causal attention, forward and backward together."""
    link_bytes_per_second: float | None = None
    """Bus bandwidth of an all-reduce between this machine's GPUs."""
    host_link_bytes_per_second: float | None = None
    """Between pinned host memory and the device."""
    layer_seconds: float | None = None
    """Forward and backward of a decoder layer so small that only launching its kernels takes time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Everything a plan may know of a computer; ``adaptft probe --json`` prints it."""

    gpus: tuple[Gpu, ...]
    cpu: Cpu
    memory: HostMemory
    software: Software
    links: tuple[Link, ...] = ()
    disk: Disk | None = None
    unsupported: tuple[UnsupportedAccelerator, ...] = ()
    notes: tuple[str, ...] = ()
    ceilings: Ceilings | None = None
    """Measured on this machine; None: the table of GPUs is all that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """A kind of linear layer: ``count`` matrices of ``in_features`` x ``out_features`` in the model.

    ``name`` is the module's last name (``q_proj``); ``per_token`` is how many of the ``count``
    one token passes through (less than ``count`` for routed experts). ``path`` is the module's full
    name with ``*`` for the layer's number; ``layers`` the numbers, None for every layer.
    """

    name: str
    kind: LinearKind
    in_features: int
    out_features: int
    count: int
    per_token: int
    bias: bool = False
    is_linear_module: bool = True
    """False where transformers keeps the weights as a bare parameter (fused experts, their routers)."""
    tied: bool = False
    """True for a head that uses the embedding's table: it computes, and has no parameters of its own."""
    path: str = ""
    layers: tuple[int, ...] | None = None

    @property
    def num_weights(self) -> int:
        """Weights that all ``count`` matrices multiply with, biases left out; counted for a tied head too."""
        return self.in_features * self.out_features * self.count

    @property
    def num_parameters(self) -> int:
        """Parameters that exist because of this layer: weights and biases, none for a tied head."""
        return 0 if self.tied else self.num_weights + self.bias * self.out_features * self.count

    def module_names(self, num_layers: int) -> tuple[str, ...]:
        """Full names of the modules in a model of ``num_layers``: ``model.layers.0.self_attn.q_proj`` ..."""
        path = self.path or self.name
        if "*" not in path:
            return (path,)
        layers = range(num_layers) if self.layers is None else self.layers
        return tuple(path.replace("*", str(layer)) for layer in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """Mixture-of-experts layers: which, how many experts, how many a token uses."""

    layers: tuple[int, ...]
    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A causal language model as its config.json describes it; no weights are read."""

    name: str
    model_type: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    linears: tuple[LinearShape, ...]
    num_parameters: int
    num_active_parameters: int
    stored_dtype: str
    sliding_window: int | None = None
    quantization: str | None = None
    moe: MoeShape | None = None

    @property
    def query_size(self) -> int:
        """Width of all query heads together (not always ``hidden_size``)."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Weights of the input embedding table."""
        return self.vocab_size * self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShape:
    """Training data in numbers; ``assumed`` is True where nothing was measured."""

    num_rows: int
    num_tokens: int
    num_trained_tokens: int
    longest_row_tokens: int
    sources: tuple[str, ...] = ()
    assumed: bool = False
    length_profile: tuple[float, ...] = ()
    """Mean lengths, in tokens, of equal parts of the rows, shortest rows first; empty where not measured."""

    @property
    def mean_row_tokens(self) -> float:
        """Mean length of a row in tokens."""
        return self.num_tokens / max(self.num_rows, 1)

    def mean_longest(self, num_rows: int) -> float:
        """Mean length, in tokens, of the longest of ``num_rows`` rows taken at random.

        The longest of m is of the i-th of n equal parts or a shorter one with probability (i/n)^m. Without the
        profile lengths are taken as exponentially spread, where it is 1 + 1/2 + ... + 1/m times the mean.
        """
        parts = len(self.length_profile)
        if not parts:
            return self.mean_row_tokens * sum(1 / count for count in range(1, num_rows + 1))
        below = [(part / parts) ** num_rows for part in range(parts + 1)]
        return sum(
            length * (high - low) for length, (low, high) in zip(self.length_profile, pairwise(below), strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """A serving engine as it is installed: which build, under which interpreter."""

    backend: Literal["vllm", "sglang", "transformers"]
    package: str
    version: str
    python: str
    device: Literal["cuda", "cpu", "any"]
    """What the build computes on: vLLM has one build for CUDA and one for the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """A LoRA adapter folder as a server sees it; no weights are read.

    ``max_rank`` is the largest rank of any layer (``r`` and ``rank_pattern``), ``layer_shapes`` maps a
    linear layer's last name to its ``(in_features, out_features)``, and ``special_features`` names what
    goes beyond plain LoRA matrices ("DoRA").
    """

    name: str
    path: str
    rank: int
    max_rank: int
    base_model: str | None = None
    base_fingerprint: str | None = None
    layer_shapes: dict[str, tuple[int, int]] = field(default_factory=dict)
    special_features: tuple[str, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model with its adapters, as a server finds them on disk.

    ``file_bytes`` is the size of the weight files, ``export_format`` the format of an export of ours;
    ``generation_config`` is a folder whose stop tokens replace the model's own, ``chat_template`` a file that
    replaces the model's own.
    """

    model_path: str
    name: str
    adapters: tuple[AdapterShape, ...] = ()
    file_bytes: int | None = None
    export_format: str | None = None
    generation_config: str | None = None
    chat_template: str | None = None
    tool_parser: str | None = None
    """Which of the engines' parsers reads the tool calls that the chat template teaches; None: it teaches none."""
    has_kv_scales: bool = False
    """True for an export that was calibrated for an FP8 KV cache."""
    is_greedy: bool = False
    """True where its generation config says ``do_sample: false``."""
    notes: tuple[str, ...] = ()
