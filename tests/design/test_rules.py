"""Rules that a reader of one file cannot see broken."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import PACKAGE, ROOT, SOURCES, name, tree

from adaptft import errors

# the writer of this process, and one that runs only in a worker that tokenises
ENVIRONMENT_WRITERS = {"adaptft/training/numerics.py", "adaptft/data/tokenising.py"}
BROAD = {"Exception", "BaseException"}


def test_layers_hold():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def is_environ(node):
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def environment_writes(path):
    """Lines that set or delete a variable of this process."""
    for node in ast.walk(tree(path)):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        if any(isinstance(t, ast.Subscript) and is_environ(t.value) for t in targets):
            yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes = is_environ(node.func.value) and node.func.attr in ("update", "setdefault", "pop", "clear")
            if changes or node.func.attr in ("putenv", "unsetenv"):
                yield node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_those_files_write_the_environment(path):
    if name(path) not in ENVIRONMENT_WRITERS:
        assert list(environment_writes(path)) == []


def swallowed(path):
    """Handlers of every error that do nothing."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD)
            inside = [n for statement in node.body for n in ast.walk(statement)]
            if broad and not any(isinstance(n, ast.Raise | ast.Return | ast.Assign | ast.Call) for n in inside):
                yield node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_error_is_swallowed(path):
    assert list(swallowed(path)) == []


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize("path", sorted((PACKAGE / "policy").rglob("*.py")), ids=name)
def test_policy_functions_read_no_clock_and_print_nothing(path):
    calls = {n.func.id for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not calls & {"print", "open", "input"}


OUR_ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type)}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_an_error_without_a_way_out_is_never_made(path):
    """mypy checks it too; this holds for what mypy does not see."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OUR_ERRORS:
            assert any(keyword.arg in ("fix", None) for keyword in node.keywords), node.lineno
