"""Facts, requests, plans and reports are frozen; names that the package promises exist."""

import ast
import dataclasses
import importlib
import inspect

import pytest
from source_tree import PACKAGE, SOURCES, name, tree

import adaptft

VALUE_MODULES = ["facts", "requests", "plans", "reports", "artifacts"]


def dataclass_settings(path):
    """(class, keywords of its @dataclass) for every dataclass of a file."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if getattr(called, "id", getattr(called, "attr", "")) == "dataclass":
                keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
                yield node.name, {k.arg: ast.literal_eval(k.value) for k in keywords}


@pytest.mark.parametrize("module", VALUE_MODULES)
def test_every_value_is_frozen_with_slots_and_a_docstring(module):
    file, folder = PACKAGE / f"{module}.py", PACKAGE / module
    parts = sorted(folder.glob("*.py")) if folder.is_dir() else [file]
    found = {cls: settings for part in parts for cls, settings in dataclass_settings(part)}
    assert found
    for cls, settings in found.items():
        assert settings.get("frozen"), cls
        assert settings.get("slots"), cls
        assert inspect.getdoc(getattr(importlib.import_module(f"adaptft.{module}"), cls))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.parent.name == "policy"], ids=name)
def test_every_dataclass_of_the_policy_is_frozen(path):
    assert [cls for cls, settings in dataclass_settings(path) if not settings.get("frozen")] == []


def test_names_of_facts_carry_their_units():
    facts = importlib.import_module("adaptft.facts")
    for cls in vars(facts).values():
        if dataclasses.is_dataclass(cls):
            for field in dataclasses.fields(cls):
                if any(word in field.name for word in ("memory_total", "memory_free", "limit")):
                    assert field.name.endswith(("_bytes", "_watts")), f"{cls.__name__}.{field.name}"


def test_every_public_name_of_the_package_is_there():
    assert set(adaptft.__all__) <= set(dir(adaptft))
    for public in adaptft.__all__:
        assert getattr(adaptft, public) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        adaptft.nothing  # noqa: B018
