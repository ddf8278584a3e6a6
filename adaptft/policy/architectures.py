"""What a GPU generation can do, by compute capability.

One row is one generation. Never ask ``torch.cuda.is_bf16_supported()``: it counts emulation, and is wrong on T4
and V100.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Number formats that the tensor cores of a generation multiply, and what else hangs on it.

    ``varlen_attention`` is torch's own variable-length kernel (FlashAttention 2 needs Ampere).
    ``fp8_training_measured`` is True where adaptft's FP8 layers were measured to be faster.
    """

    name: str
    since: tuple[int, int]
    fp16: bool
    bf16: bool
    tf32: bool
    fp8: bool
    int8: bool
    varlen_attention: bool
    fp8_training_measured: bool = False


#                 name               since    fp16   bf16   tf32   fp8    int8   varlen
_GENERATIONS = (
    Capabilities("Maxwell or older", (0, 0), False, False, False, False, False, False),
    Capabilities("Pascal", (6, 0), False, False, False, False, False, False),
    Capabilities("Volta", (7, 0), True, False, False, False, False, False),
    Capabilities("Turing", (7, 5), True, False, False, False, True, False),
    Capabilities("Ampere", (8, 0), True, True, True, False, True, True),
    Capabilities("Ada", (8, 9), True, True, True, True, True, True),
    Capabilities("Hopper", (9, 0), True, True, True, True, True, True, fp8_training_measured=True),
    Capabilities("Blackwell", (10, 0), True, True, True, True, True, True),
    Capabilities("Blackwell (GeForce, RTX PRO)", (12, 0), True, True, True, True, True, True),
)


def capabilities(compute_capability: tuple[int, int]) -> Capabilities:
    """The row of the newest generation that is not newer than ``compute_capability``.

    A card newer than the table gets the newest row.
    """
    return max((g for g in _GENERATIONS if g.since <= compute_capability), key=lambda g: g.since)
