"""Which linear layers LoRA adapts: from the words of ``target_modules`` to modules of the model.

PEFT reads a text as a regex over the whole module name and a list as endings of names, and passes over what
matches nothing. Here every word is looked up in the model's shape before any weight is read, and means one thing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from adaptft.errors import RequestError
from adaptft.facts import LinearShape, ModelShape

ALL_LINEAR = frozenset({"all-linear", "all_linear", "all"})
_ADAPTABLE = frozenset({"attention", "mlp", "shared_expert"})
_REGEX_SIGNS = re.compile(r"[\\*\[\]()|^$+?{}]")

# PEFT 0.21 turns these names into adapters on the fused experts, whatever module was meant, in models whose
# checkpoints transformers converts (peft/utils/transformers_weight_conversion.py; a test compares the two lists).
_MOVED_NAMES = frozenset({"gate_proj", "up_proj", "down_proj"})
_MOVED_BY_PEFT = frozenset(
    {
        "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe",
        "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe", "longcat_flash", "solar_open", "mellum", "qwen3_moe",
        "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_next", "hunyuan_v1_moe", "flex_olmo", "olmoe",
        "exaone_moe", "cohere2_moe",
    }
)  # fmt: skip

_WHY_NOT = {
    "head": "is tied to the embedding, so an adapter on it could not be merged",
    "router": "only routes tokens; an adapter there would disturb which experts run",
    "expert": "is kept by transformers as one fused parameter, which is no linear layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The modules that get adapters; PEFT takes ``names`` (endings of module names) or else ``regex``."""

    linears: tuple[LinearShape, ...]
    modules: tuple[str, ...]
    names: tuple[str, ...] = ()
    regex: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_modules(self) -> int:
        """How many linear layers get an adapter."""
        return len(self.modules)

    @property
    def has_head(self) -> bool:
        """True where the output head gets an adapter."""
        return any(row.kind == "head" for row in self.linears)

    def trainable_parameters(self, rank: int, *, use_dora: bool = False) -> int:
        """Parameters of all adapters: rank x (inputs + outputs) a layer, and with DoRA a magnitude an output."""
        return sum(
            row.count * (rank * (row.in_features + row.out_features) + use_dora * row.out_features)
            for row in self.linears
        )


@dataclass(frozen=True, slots=True)
class _Module:
    """One matrix of the model under its full name."""

    name: str
    row: LinearShape


def resolve_targets(model: ModelShape, wanted: tuple[str, ...] = (), modules_to_save: tuple[str, ...] = ()) -> Targets:
    """What ``target_modules`` means for ``model``; nothing wanted means all linear layers.

    Args:
        wanted: names, endings of names, regexes over full names, ``all-linear``; each text may itself be a list
            written with commas, spaces or as JSON.
        modules_to_save: modules that are trained whole and so need no adapter.

    Raises:
        RequestError: a word names no linear layer of this model, or one that must not be adapted.
    """
    words = _words(wanted)
    modules = _modules(model)
    chosen: set[str] = set()
    left_out: list[_Module] = []
    if not wanted or any(word.lower() in ALL_LINEAR for word in words):
        chosen = {module.name for module in modules if _is_adaptable(model, module)}
    words = [word for word in words if word.lower() not in ALL_LINEAR and word not in modules_to_save]
    for word in words:
        allowed, others = _look_up(model, modules, word)
        chosen |= {module.name for module in allowed}
        left_out += others
    if not chosen:
        raise RequestError(
            f"Nothing of {model.name} is left to adapt with target_modules {' '.join(wanted)}.",
            fix="Name at least one linear layer that is not in modules_to_save, or use all-linear.",
        )
    notes = _notes(model, [module for module in left_out if module.name not in chosen])
    return _targets(model, modules, [module for module in modules if module.name in chosen], words, notes)


def adapted_linears(model: ModelShape, target_modules: tuple[str, ...] = ()) -> tuple[LinearShape, ...]:
    """The rows of ``model.linears`` that LoRA adapts, each with only the layers it adapts.

    Raises:
        RequestError: as ``resolve_targets``.
    """
    return resolve_targets(model, target_modules).linears


def kept_in_16_bit(model: ModelShape) -> tuple[str, ...]:
    """Endings of the names of linear layers that no quantisation touches: head, routers, one-output gates."""
    rows = [row for row in model.linears if row.kind in ("head", "router")]
    return tuple(dict.fromkeys(row.path.rpartition("*.")[2] or row.name for row in rows))


def _words(wanted: Iterable[str]) -> list[str]:
    """Single words out of texts that may hold several. A regex stays whole, its commas and spaces too."""
    words: list[str] = []
    for text in wanted:
        text = text.strip()
        if text.startswith("[") and text.endswith("]") and (inner := _json_list(text)) is not None:
            words += _words(inner)
        elif _REGEX_SIGNS.search(text):
            words.append(text)
        else:
            words += [word for word in re.split(r"[,\s]+", text) if word]
    if wanted and not words:
        raise RequestError(
            "target_modules is empty.", fix="Leave it out for all linear layers, or name some: q_proj,v_proj."
        )
    return list(dict.fromkeys(words))


def _json_list(text: str) -> list[str] | None:
    """The texts of a JSON list, None where ``text`` is none (a regex may begin with a bracket)."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None


def _modules(model: ModelShape) -> list[_Module]:
    return [_Module(name, row) for row in model.linears for name in row.module_names(model.num_layers)]


def _is_adaptable(model: ModelShape, module: _Module) -> bool:
    return module.row.kind in _ADAPTABLE and module.row.is_linear_module and not _is_moved(model, module)


def _is_moved(model: ModelShape, module: _Module) -> bool:
    """True where PEFT would put the adapter on the fused experts and not on this module."""
    return model.moe is not None and model.model_type in _MOVED_BY_PEFT and module.row.name in _MOVED_NAMES


def _matcher(word: str) -> Callable[[str], bool]:
    """PEFT's rules: a regex must match the full name, a name must be its ending at a dot."""
    if not _REGEX_SIGNS.search(word):
        return lambda name: name == word or name.endswith(f".{word}")
    try:
        pattern = re.compile(word)
    except re.error as cause:
        raise RequestError(
            f"target_modules {word} is no valid regex: {cause}.",
            fix=r"Write a regex over full names, such as .*layers\.0\.self_attn\.(q|v)_proj, or names of layers.",
        ) from cause
    return lambda name: pattern.fullmatch(name) is not None


def _look_up(model: ModelShape, modules: Sequence[_Module], word: str) -> tuple[list[_Module], list[_Module]]:
    """The modules that ``word`` means, at least one, and those that it matches and that get no adapter.

    Raises:
        RequestError: it matches none, or none that can be adapted.
    """
    matches = _matcher(word)
    found = [module for module in modules if matches(module.name)]
    if not found:
        raise RequestError(f"target_modules {word} {_what_it_is(model, modules, word)}.", fix=_near(modules, word))
    allowed = [m for m in found if _is_adaptable(model, m) or (m.row.kind == "head" and not m.row.tied)]
    if not allowed:
        raise RequestError(_refusal(model, found[0], word), fix=_instead(model, found[0]))
    return allowed, [module for module in found if module not in allowed]


def _what_it_is(model: ModelShape, modules: Sequence[_Module], word: str) -> str:
    parts = {part for module in modules for part in module.name.split(".")[:-1]}
    if word in parts or any(f".{word}." in f".{module.name}" for module in modules):
        return f"is no linear layer of {model.name}, but a block that holds some"
    return f"matches no linear layer of {model.name}"


def _near(modules: Sequence[_Module], word: str) -> str:
    """The fix: near names first, then all names there are."""
    names = list(dict.fromkeys(m.row.name for m in modules if m.row.kind in _ADAPTABLE))
    near = get_close_matches(word.rpartition(".")[2], names, n=2, cutoff=0.6)
    held = [n for n in names if any(f".{word}.{n}" in m.name for m in modules if m.row.kind in _ADAPTABLE)]
    if near:
        return f"Did you mean {' or '.join(near)}? Its linear layers are {', '.join(names)}."
    if held:
        return f"Name the linear layers in it: {','.join(held)}."
    return f"Its linear layers are {', '.join(names)}; all-linear takes them all."


def _refusal(model: ModelShape, module: _Module, word: str) -> str:
    if _is_moved(model, module):
        return (
            f"target_modules {word}: PEFT would put these adapters on the fused experts of {model.name}, "
            "not on the layers of that name."
        )
    return f"target_modules {word}: {module.name} of {model.name} {_WHY_NOT[module.row.kind]}."


def _instead(model: ModelShape, module: _Module) -> str:
    if module.row.kind == "head":
        return "Leave lm_head out, or train it whole with --modules_to_save lm_head."
    names = dict.fromkeys(m.row.name for m in _modules(model) if _is_adaptable(model, m))
    return f"Adapt {', '.join(names)}; all-linear takes them all."


def _targets(
    model: ModelShape, modules: Sequence[_Module], chosen: Sequence[_Module], words: Sequence[str],
    notes: tuple[str, ...],
) -> Targets:  # fmt: skip
    """Say the choice in PEFT's terms: a list of endings where one says exactly this, else a regex."""
    rows: dict[str, list[_Module]] = {}
    for module in chosen:
        rows.setdefault(f"{module.row.path}:{module.row.name}", []).append(module)
    real = [module.name for module in modules if module.row.kind != "expert"]
    names = tuple(module.name for module in chosen)
    endings = _endings(real, chosen, words)
    return Targets(
        linears=tuple(_restricted(model, group) for group in rows.values()),
        modules=names,
        names=endings or (),
        regex=None if endings else _regex(real, names, words),
        notes=notes,
    )


def _endings(real: Sequence[str], chosen: Sequence[_Module], words: Sequence[str]) -> tuple[str, ...] | None:
    """Endings that match every chosen module and no other, or None: the user's own words before last names."""
    last_names = list(dict.fromkeys(module.row.name for module in chosen))
    own = [word for word in words if not _REGEX_SIGNS.search(word)]
    wanted = [module.name for module in chosen]
    for candidate in (own, last_names, list(dict.fromkeys(own + last_names))):
        matchers = [_matcher(name) for name in candidate]
        if [name for name in real if any(matches(name) for matches in matchers)] == wanted:
            return tuple(candidate)
    return None


def _regex(real: Sequence[str], wanted: tuple[str, ...], words: Sequence[str]) -> str:
    """A regex over full names that matches ``wanted`` alone: the user's own, or the names one by one."""
    own = [word if _REGEX_SIGNS.search(word) else rf"(?:.*\.)?{re.escape(word)}" for word in words]
    joined = own[0] if len(own) == 1 else "|".join(f"(?:{part})" for part in own)
    if own and tuple(name for name in real if re.fullmatch(joined, name)) == wanted:
        return joined
    return "|".join(re.escape(name) for name in wanted)


def _restricted(model: ModelShape, group: Sequence[_Module]) -> LinearShape:
    """The row of ``group`` with only the layers in it; the row itself where that is all of them."""
    row = group[0].row
    names = row.module_names(model.num_layers)
    if len(group) == len(names):
        return row
    layers = range(model.num_layers) if row.layers is None else row.layers
    present = {module.name for module in group}
    kept = tuple(layer for layer, name in zip(layers, names, strict=True) if name in present)
    return replace(row, layers=kept, count=len(kept), per_token=len(kept))


def _notes(model: ModelShape, left_out: Sequence[_Module]) -> tuple[str, ...]:
    """What gets no adapter although one might think so, in words."""
    notes = {m.row.name: f"{m.row.name} {_WHY_NOT[m.row.kind]}." for m in left_out if m.row.kind in ("head", "router")}
    lines = list(notes.values())
    if model.moe is not None:
        lines.append("Routed experts get no adapters: transformers keeps them as fused parameters.")
        if any(_is_moved(model, m) and m.row.kind in _ADAPTABLE for m in _modules(model)):
            lines.append("MLP layers beside them get none either: PEFT would put those on the fused experts.")
    return tuple(lines)
