"""Recipes: a YAML file of request keys.

Every plain scalar is read as text. What it means is decided by the field it is for (``values``), so
that YAML 1.1's surprises do not arise: ``no`` stays a word, ``1e-4`` and ``010`` keep their digits,
a commit such as ``1234e56`` stays a name. Only an empty value and ``null`` are special: nothing was set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from adaptft.errors import RequestError
from adaptft.parsing.given import Given, in_recipe

_FIX = "A recipe is a YAML file of lines such as: lora_rank: 16"


class _TextLoader(yaml.SafeLoader):
    """Scalars as text, mappings without duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are all different; ``-`` and ``_`` are the same.

        Raises:
            ConstructorError: a key is there twice; names both lines.
        """
        first_lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value).replace("-", "_"), key_node.start_mark.line + 1
            if key in first_lines and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key_node.value} is there twice, on lines {first_lines[key]} and {line}"
                )
            first_lines[key] = line
        return super().construct_mapping(node, deep=True)


_KEPT = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")
_TextLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] in _KEPT]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_recipe(path: Path) -> dict[str, Given]:
    """The keys of the recipe at ``path``, as written, with their lines.

    Raises:
        RequestError: no such file, not text, not YAML, a key twice, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as cause:
        raise RequestError(f"Cannot read the recipe {path}: {cause.strerror}.", fix=_FIX) from cause
    except UnicodeDecodeError as cause:
        raise RequestError(f"The recipe {path} is not UTF-8 text.", fix=_FIX) from cause
    node, values = _load(text, path)
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value} if node else {}
    return {
        str(key): in_recipe(str(key), raw, f"{path}, line {lines[str(key)]}" if str(key) in lines else str(path))
        for key, raw in values.items()
    }


def read_flow(text: str) -> Any:
    """A YAML or JSON fragment such as ``["a", 'b']`` with every scalar as text.

    Raises:
        yaml.YAMLError: it is neither.
    """
    return yaml.load(text, Loader=_TextLoader)


def _load(text: str, path: Path) -> tuple[yaml.MappingNode | None, dict[Any, Any]]:
    try:
        node = yaml.compose(text, Loader=_TextLoader)
        values = read_flow(text)
    except yaml.YAMLError as cause:
        raise RequestError(f"The recipe {path} cannot be read: {_explain(cause)}.", fix=_FIX) from cause
    if node is None or values is None:
        return None, {}
    if not isinstance(node, yaml.MappingNode):
        raise RequestError(f"The recipe {path} is not a list of keys and values.", fix=_FIX)
    return node, values


def _explain(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return (error.problem or "not YAML") + (f" (line {mark.line + 1}, column {mark.column + 1})" if mark else "")
    return " ".join(str(error).split())
