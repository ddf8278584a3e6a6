"""Sizes that keep the code readable (CONTRIBUTING.md, rule 6)."""

import statistics

import pytest
from source_tree import SOURCES, functions, name

FILE_MEDIAN, FILE_MOST = 150, 400
FUNCTION_USUAL, FUNCTION_MOST = 40, 80


def num_lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_file_and_no_function_is_too_long(path):
    assert num_lines(path) <= FILE_MOST
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path)}
    assert {n: lines for n, lines in long.items() if lines > FUNCTION_MOST} == {}


def test_most_files_and_functions_are_short():
    assert statistics.median(num_lines(path) for path in SOURCES) <= FILE_MEDIAN
    lengths = sorted(f.end_lineno - f.lineno + 1 for path in SOURCES for f in functions(path))
    assert lengths[int(len(lengths) * 0.9)] <= FUNCTION_USUAL
