"""Where adaptft keeps what it can make again: one folder, one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from adaptft.home import cache_folder


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"ADAPTFT_HOME": "/a", "ADAPTFT_CACHE": "/b", "XDG_CACHE_HOME": "/c"}, "/a"),
        ({"ADAPTFT_CACHE": "/b", "XDG_CACHE_HOME": "/c"}, "/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/adaptft"),
        ({"HOME": "/d"}, "/d/.cache/adaptft"),
        ({"ADAPTFT_HOME": "~/kept", "HOME": "/d"}, "/d/kept"),
    ],
)
def test_the_first_name_that_is_set_counts(monkeypatch, environment, folder):
    for name in ("ADAPTFT_HOME", "ADAPTFT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
    assert cache_folder("rows", "data") == Path(folder) / "rows" / "data"


def test_models_and_rows_are_kept_under_it(monkeypatch, tmp_path):
    from adaptft.data import cache
    from adaptft.models import gguf

    monkeypatch.setenv("ADAPTFT_HOME", str(tmp_path))
    assert cache.rows_folder("packed", "key") == tmp_path / "rows" / "packed" / "key"
    assert gguf.cache_folder("models") == tmp_path / "models"
