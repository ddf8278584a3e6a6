"""What the memory and the time of a step depend on."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import ModelShape
from adaptft.plans import Batch, Checkpointing, Decisions, Method, Precision
from adaptft.policy.targets import Targets

MLP_LAYERS = frozenset({"gate_proj", "up_proj", "down_proj"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model together with the decisions of a plan."""

    model: ModelShape
    decisions: Decisions
    targets: Targets | None
    row_tokens: float | None = None
    """Mean length of a row, where it is known: what a sequence that is not packed holds."""

    @property
    def precision(self) -> Precision:
        """As decided."""
        return self.decisions.precision.value

    @property
    def method(self) -> Method:
        """As decided."""
        return self.decisions.method.value

    @property
    def batch(self) -> Batch:
        """As decided."""
        return self.decisions.batch.value

    @property
    def checkpointing(self) -> Checkpointing:
        """As decided."""
        return self.decisions.checkpointing.value

    @property
    def fuses_mlp(self) -> bool:
        """True where the MLP of each layer is one operator: its three layers are there and all have adapters."""
        names = {row.name for row in self.targets.linears} if self.targets else set()
        return self.decisions.adapters.value.fused and self.model.moe is None and names >= MLP_LAYERS

    @property
    def sequence_tokens(self) -> float:
        """Tokens that a sequence takes on average: all of it where rows are packed, or their length is not known.

        Rows that are padded are as long as the longest of their micro-batch: of m rows that is about
        1 + 1/2 + ... + 1/m times the mean (lengths taken as exponentially spread).
        """
        if self.batch.packing or self.row_tokens is None:
            return self.batch.max_length
        padded = self.decisions.attention.value.implementation != "varlen"
        longest = sum(1 / count for count in range(1, self.batch.micro_batch_size + 1)) if padded else 1.0
        return min(self.batch.max_length, longest * self.row_tokens)

    @property
    def attended_tokens(self) -> float:
        """Length of the sequence that a token attends within, averaged over tokens (longer rows have more of them).

        The variable-length kernel stays inside each row of a pack: twice the rows' mean, for lengths taken as
        exponentially spread; the other kernels go over the whole sequence. A sliding window bounds it.
        """
        length = self.sequence_tokens
        if self.decisions.attention.value.implementation == "varlen" and self.row_tokens is not None:
            length = min(self.batch.max_length, 2 * self.row_tokens)
        return min(length, self.model.sliding_window or length)

    @property
    def compiled(self) -> bool:
        """True where the layers are compiled, which saves fewer activations."""
        return self.decisions.compile.value.enabled
