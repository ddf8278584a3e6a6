"""What the memory and the time of a step depend on."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import DatasetShape, ModelShape
from adaptft.plans import FUSED_MLP_LAYERS, Batch, Checkpointing, Decisions, Method, Precision
from adaptft.policy.targets import Targets

ROUNDING_TOKENS = 32
"""Lengths of micro-batches that are not packed are rounded up to 64: by half of it, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model together with the decisions of a plan."""

    model: ModelShape
    decisions: Decisions
    targets: Targets | None
    dataset: DatasetShape | None = None
    """The rows: how long a sequence is that is not packed. Without them it counts as full."""

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
    def is_sharded(self) -> bool:
        """True where each rank keeps its part of weights, gradients and optimizer states, and gathers the rest."""
        return self.decisions.placement.value.is_sharded

    @property
    def sequence_parallel_size(self) -> int:
        """Ranks that share each row's tokens."""
        return self.decisions.placement.value.sequence_parallel_size

    @property
    def device_tokens(self) -> int:
        """Most tokens of a micro-batch on one device."""
        return self.batch.micro_batch_tokens // self.sequence_parallel_size

    @property
    def fuses_mlp(self) -> bool:
        """True where the MLP of each layer is one operator: its three layers are there and all have adapters."""
        names = {row.name for row in self.targets.linears} if self.targets else set()
        return self.decisions.adapters.value.fused and self.model.moe is None and names.issuperset(FUSED_MLP_LAYERS)

    @property
    def mlp_tile_tokens(self) -> int:
        """Tokens that an MLP takes at a time; 0 where it takes all and keeps what it made."""
        return self.decisions.adapters.value.mlp_tile_tokens if self.fuses_mlp else 0

    @property
    def sequence_tokens(self) -> float:
        """Tokens of the data in a sequence, on average: rows that are not packed are as long as they are."""
        if self.batch.packing or self.dataset is None:
            return self.batch.max_length
        return min(self.batch.max_length, self.dataset.mean_row_tokens)

    @property
    def computed_tokens(self) -> float:
        """Tokens of a micro-batch that a device computes, on average; memory is for ``device_tokens``, the most.

        Rows that are not packed follow each other where attention knows documents, and are filled up to the longest
        of the micro-batch where it does not; either is rounded up.
        """
        return self._micro_batch_tokens / self.sequence_parallel_size

    @property
    def _micro_batch_tokens(self) -> float:
        size, most = self.batch.micro_batch_size, self.batch.micro_batch_tokens
        if self.batch.packing or self.dataset is None:
            return most
        if self.decisions.attention.value.implementation == "varlen":
            return min(most, size * self.sequence_tokens + ROUNDING_TOKENS)
        return min(most, size * (self.dataset.mean_longest(size) + ROUNDING_TOKENS))

    @property
    def trained_share(self) -> float:
        """Of the tokens, those that the loss is computed on; all of them where the rows were not measured."""
        rows = self.dataset
        return 1.0 if rows is None or rows.assumed else rows.num_trained_tokens / max(rows.num_tokens, 1)

    @property
    def row_tokens(self) -> float | None:
        """Mean length of a row, where it was measured."""
        return None if self.dataset is None or self.dataset.assumed else self.dataset.mean_row_tokens

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
