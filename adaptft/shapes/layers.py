"""The linear layers of a known family, as rows."""

from __future__ import annotations

from dataclasses import dataclass

from adaptft.facts import LinearKind, LinearShape, MoeShape
from adaptft.shapes.families import Bias, Family
from adaptft.shapes.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Widths that every family has."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    tied: bool


def linear_layers(family: Family, fields: Fields, sizes: Sizes, moe: MoeShape | None) -> tuple[LinearShape, ...]:
    """Every linear layer in the order of the forward pass; the head is last and always there."""
    head = LinearShape(
        name="lm_head", kind="head", in_features=sizes.hidden, out_features=sizes.vocabulary, count=1, per_token=1,
        tied=sizes.tied, path="lm_head",
    )  # fmt: skip
    return (*_attention(family, fields, sizes), *_mlp(family, fields, sizes, moe), *_experts(family, sizes, moe), head)


def _attention(family: Family, fields: Fields, sizes: Sizes) -> list[LinearShape]:
    query, key_value = sizes.heads * sizes.head_dim, sizes.key_value_heads * sizes.head_dim
    qkv_bias, output_bias = _has_bias(family.qkv_bias, fields), _has_bias(family.output_bias, fields)
    if family.fused_projections:
        inputs = [("qkv_proj", query + 2 * key_value)]
    else:
        inputs = [("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)]
    rows = [_row("attention", f"self_attn.{name}", sizes.hidden, size, sizes.layers, qkv_bias) for name, size in inputs]
    return [*rows, _row("attention", "self_attn.o_proj", query, sizes.hidden, sizes.layers, output_bias)]


def _mlp(family: Family, fields: Fields, sizes: Sizes, moe: MoeShape | None) -> list[LinearShape]:
    """The dense layers' MLP: in every layer, or in those that have no experts."""
    routed = set(moe.layers if moe else ())
    dense = tuple(layer for layer in range(sizes.layers) if layer not in routed)
    bias = _has_bias(family.mlp_bias, fields)
    width = sizes.intermediate
    pair = [("gate_up_proj", 2 * width)] if family.fused_projections else [("gate_proj", width), ("up_proj", width)]
    shapes = [(name, sizes.hidden, size) for name, size in pair] + [("down_proj", width, sizes.hidden)]
    where = dense if routed else None
    return [
        _row("mlp", f"mlp.{name}", inputs, outputs, len(dense), bias, layers=where)
        for name, inputs, outputs in shapes
        if dense
    ]


def _experts(family: Family, sizes: Sizes, moe: MoeShape | None) -> list[LinearShape]:
    """Router, fused experts (as transformers 5 keeps them) and the shared expert with its gate of one output."""
    if moe is None:
        return []
    hidden, width, shared = sizes.hidden, moe.expert_intermediate_size, moe.shared_intermediate_size
    shapes: list[tuple[LinearKind, str, int, int]] = [
        ("router", "mlp.gate", hidden, moe.num_experts),
        ("expert", "mlp.experts.gate_up_proj", hidden, 2 * width),
        ("expert", "mlp.experts.down_proj", width, hidden),
    ]
    if family.shared_expert:
        shapes += [
            ("shared_expert", "mlp.shared_expert.gate_proj", hidden, shared),
            ("shared_expert", "mlp.shared_expert.up_proj", hidden, shared),
            ("shared_expert", "mlp.shared_expert.down_proj", shared, hidden),
            ("router", "mlp.shared_expert_gate", hidden, 1),
        ]
    layers = moe.layers if len(moe.layers) < sizes.layers else None
    return [
        _row(
            kind, name, inputs, outputs, len(moe.layers),
            copies=moe.num_experts if kind == "expert" else 1,
            used=moe.experts_per_token if kind == "expert" else 1,
            layers=layers,
            module=kind != "expert" and name != "mlp.gate",
        )
        for kind, name, inputs, outputs in shapes
    ]  # fmt: skip


def _row(
    kind: LinearKind, name: str, inputs: int, outputs: int, num_layers: int, bias: bool = False, *,
    copies: int = 1, used: int = 1, layers: tuple[int, ...] | None = None, module: bool = True,
) -> LinearShape:  # fmt: skip
    return LinearShape(
        name=name.rpartition(".")[2], kind=kind, in_features=inputs, out_features=outputs,
        count=copies * num_layers, per_token=used * num_layers, bias=bias, is_linear_module=module,
        path=f"model.layers.*.{name}", layers=layers,
    )  # fmt: skip


def _has_bias(bias: Bias, fields: Fields) -> bool:
    return fields.flag(bias) if isinstance(bias, str) else bias
