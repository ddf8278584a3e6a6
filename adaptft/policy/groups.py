"""Which linear layers a format compresses, and in groups of how many weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from adaptft.errors import ExportError, RequestError
from adaptft.facts import LinearKind, LinearShape, ModelShape
from adaptft.plans import Decision
from adaptft.policy.format_table import GROUP_SIZES, FormatFacts

_NEVER_COMPRESSED: tuple[LinearKind, ...] = ("head", "router")
_FUSED_GATE = "gate_up_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layers that are compressed, those that are not, and the group size (None: whole channels)."""

    compressed: tuple[LinearShape, ...]
    ignored: tuple[LinearShape, ...]
    group_size: Decision[int | None]

    @property
    def ignored_patterns(self) -> tuple[str, ...]:
        """The ignored layers as llm-compressor's ``ignore`` takes them; the head is always among them."""
        patterns = ["lm_head", *(module_pattern(linear) for linear in self.ignored if linear.kind != "head")]
        return tuple(dict.fromkeys(patterns))


def layout(facts: FormatFacts, model: ModelShape, wanted: int | None) -> Layout:
    """Choose the layers and the group size; ``wanted`` is the user's group size.

    Raises:
        RequestError: a group size for a format that has none, or one that does not divide a layer's inputs.
        ExportError: no layer can be compressed, or one cannot be cut into the format's blocks.
    """
    if not facts.is_grouped and wanted is not None:
        raise RequestError(
            f"group_size {wanted} does not go with this format: {facts.title} has no groups.",
            fix="Leave --group_size out, or choose --format awq or gptq.",
        )
    if not facts.is_compressed:
        return Layout(compressed=(), ignored=(), group_size=Decision(None, "nothing is compressed"))
    ignored = [linear for linear in model.linears if stays_16_bit(linear)]
    compressed = [linear for linear in model.linears if not stays_16_bit(linear)]
    if facts.block:
        _check_blocks(facts.block, compressed, model.name)
        size: Decision[int | None] = Decision(None, f"a scale for each block of {facts.block} x {facts.block} weights")
    elif not facts.is_grouped:
        size = Decision(None, "a scale for each output channel, so a layer of any width fits")
    else:
        uneven = [linear for linear in compressed if linear.in_features % GROUP_SIZES[-1]]
        compressed = [linear for linear in compressed if linear not in uneven]
        size = _group_size(compressed, uneven, wanted, model.name)
        ignored += uneven
    return Layout(compressed=tuple(compressed), ignored=tuple(ignored), group_size=size)


def _check_blocks(block: int, linears: list[LinearShape], model_name: str) -> None:
    """llm-compressor writes uneven blocks without a word, and the result fails at its first token."""
    uneven = [linear for linear in linears if linear.in_features % block or linear.out_features % block]
    if uneven:
        shapes = ", ".join(sorted({f"{linear.in_features} x {linear.out_features}" for linear in uneven}))
        raise ExportError(
            f"{_names(uneven)} of {model_name} ({shapes}) cannot be cut into blocks of {block} x {block} weights.",
            fix="Use --format fp8: a scale for each channel takes any width.",
        )


def stays_16_bit(linear: LinearShape) -> bool:
    """True for layers no format compresses: the head, routers and gates with one output.

    They are small and steer everything after them, and vLLM reads them in 16 bit.
    """
    return linear.kind in _NEVER_COMPRESSED or linear.out_features == 1


def module_pattern(linear: LinearShape) -> str:
    r"""The modules of a row as one of llm-compressor's patterns: ``re:.*\.mlp\.gate$``.

    The part of the path after the layer's number tells a dense ``down_proj`` from a shared expert's.
    """
    tail = linear.path.rpartition("*.")[2] or linear.name
    parent, _, name = tail.rpartition(".")
    names = "(gate_proj|up_proj)" if _is_fused_gate(linear) else re.escape(name)
    steps = [".*", *filter(None, [re.escape(parent)]), *([r"\d+"] if linear.kind == "expert" else []), names]
    return "re:" + r"\.".join(steps) + "$"


def num_modules(linears: Iterable[LinearShape]) -> int:
    """Linear layers once llm-compressor has taken fused experts apart: three an expert (gate, up, down)."""
    return sum(linear.count * (2 if _is_fused_gate(linear) else 1) for linear in linears)


def _is_fused_gate(linear: LinearShape) -> bool:
    return linear.kind == "expert" and linear.name == _FUSED_GATE


def _group_size(
    even: list[LinearShape], uneven: list[LinearShape], wanted: int | None, model_name: str
) -> Decision[int | None]:
    if not even:
        raise ExportError(
            f"No linear layer of {model_name} can be stored in 4 bit: their inputs ({_widths(uneven)}) "
            f"are not divisible by {GROUP_SIZES[-1]}, the smallest group.",
            fix="Use --format fp8 or int8: they have no groups.",
        )
    largest = next(size for size in GROUP_SIZES if all(linear.in_features % size == 0 for linear in even))
    if wanted is not None:
        return _users_group_size(wanted, even, largest)
    kept = f"; {_names(uneven)} ({_widths(uneven)} inputs) stay in 16 bit" if uneven else ""
    sizes = ", ".join(map(str, GROUP_SIZES))
    return Decision(largest, f"the largest of {sizes} that divides the layers' inputs ({_widths(even)}){kept}")


def _users_group_size(wanted: int, linears: list[LinearShape], largest: int) -> Decision[int | None]:
    fix = f"Leave --group_size out: adaptft takes {largest} for this model."
    if wanted not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise RequestError(f"There is no kernel for group_size {wanted}; there are for {sizes}.", fix=fix)
    uneven = [linear for linear in linears if linear.in_features % wanted]
    if uneven:
        problem = f"group_size {wanted} does not divide the {_widths(uneven)} inputs of {_names(uneven)}."
        raise RequestError(problem, fix=fix)
    return Decision(wanted, "as asked for", "user")


def _widths(linears: list[LinearShape]) -> str:
    return ", ".join(map(str, sorted({linear.in_features for linear in linears})))


def _names(linears: list[LinearShape]) -> str:
    return ", ".join(sorted({linear.name for linear in linears}))
