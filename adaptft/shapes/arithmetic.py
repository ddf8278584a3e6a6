"""A known family's config.json to a ModelShape, by arithmetic alone."""

from __future__ import annotations

from adaptft.facts import ModelShape, MoeShape
from adaptft.shapes.families import FAMILIES, Family
from adaptft.shapes.fields import Fields
from adaptft.shapes.layers import Sizes, linear_layers
from adaptft.shapes.stored import quantization, stored_dtype

_MOST_LAYERS = 1024


def computed_shape(fields: Fields) -> ModelShape:
    """The shape of a model whose ``model_type`` is a row of FAMILIES.

    Raises:
        ModelError: a field is missing or cannot be.
    """
    model_type = fields.config["model_type"]
    family = FAMILIES[model_type]
    fields = Fields(fields.config, fields.name, dict(family.defaults))
    sizes = _sizes(fields)
    moe = _moe(family, fields, sizes)
    linears = linear_layers(family, fields, sizes, moe)
    other = sizes.vocabulary * sizes.hidden + _norm_parameters(family, sizes)
    unused = sum(row.in_features * row.out_features * (row.count - row.per_token) for row in linears)
    total = other + sum(row.num_parameters for row in linears)
    return ModelShape(
        name=fields.name,
        model_type=model_type,
        architecture=family.architecture,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_value_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocabulary,
        max_position_embeddings=fields.size("max_position_embeddings"),
        tie_word_embeddings=sizes.tied,
        linears=linears,
        num_parameters=total,
        num_active_parameters=total - unused,
        stored_dtype=stored_dtype(fields),
        sliding_window=_sliding_window(family, fields),
        quantization=quantization(fields),
        moe=moe,
    )


def _sizes(fields: Fields) -> Sizes:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    key_value_heads = fields.size("num_key_value_heads", heads)
    if heads % key_value_heads:
        raise fields.error(
            f"has {heads} attention heads and {key_value_heads} key-value heads",
            "num_key_value_heads must divide num_attention_heads.",
        )
    if fields.get("head_dim") is None and hidden % heads:
        raise fields.error(
            f"has hidden_size {hidden} that {heads} heads do not divide, and no head_dim",
            "Add the head_dim that the model was published with.",
        )
    layers = fields.size("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise fields.error(f"has num_hidden_layers = {layers}", f"At most {_MOST_LAYERS} layers are believed.")
    return Sizes(
        hidden=hidden,
        intermediate=fields.size("intermediate_size"),
        layers=layers,
        heads=heads,
        key_value_heads=key_value_heads,
        head_dim=fields.size("head_dim", hidden // heads),
        vocabulary=fields.size("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
    )


def _norm_parameters(family: Family, sizes: Sizes) -> int:
    per_layer = family.norms_per_layer * sizes.hidden + family.query_key_norms * 2 * sizes.head_dim
    return sizes.layers * per_layer + sizes.hidden


def _moe(family: Family, fields: Fields, sizes: Sizes) -> MoeShape | None:
    """Which layers route: Mixtral's all, Qwen's every ``decoder_sparse_step``-th less ``mlp_only_layers``."""
    if family.experts is None:
        return None
    if family.experts == "every layer":
        num_experts, width = fields.size("num_local_experts"), sizes.intermediate
        layers = tuple(range(sizes.layers))
    else:
        num_experts = fields.size("num_experts", least=0)
        width = fields.size("moe_intermediate_size")
        step, dense = fields.size("decoder_sparse_step", 1), fields.numbers("mlp_only_layers")
        layers = tuple(i for i in range(sizes.layers) if num_experts and (i + 1) % step == 0 and i not in dense)
    if not layers:
        return None
    per_token = fields.size("num_experts_per_tok")
    if per_token > num_experts:
        raise fields.error(
            f"has num_experts_per_tok {per_token} of {num_experts} experts",
            "A token cannot pass through more experts than there are.",
        )
    return MoeShape(
        layers=layers,
        num_experts=num_experts,
        experts_per_token=per_token,
        expert_intermediate_size=width,
        shared_intermediate_size=fields.size("shared_expert_intermediate_size") if family.shared_expert else 0,
    )


def _sliding_window(family: Family, fields: Fields) -> int | None:
    """Tokens a position sees, None for all. A null in the file is an answer and overrides the family's default."""
    if family.window_switch and not fields.flag("use_sliding_window"):
        return None
    if "sliding_window" in fields.config and fields.config["sliding_window"] is None:
        return None
    return fields.size("sliding_window") if fields.get("sliding_window") is not None else None
