"""Whatever is in a file, reading it gives rows or an error of ours in two lines; never a traceback, never a hang.

ADAPTFT_FUZZ_FILES=2000 pytest tests/data/test_fuzz.py tries 20,000 files, others every time, in some ten minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_files import SUFFIXES, files
from hypothesis import HealthCheck, given, settings

from adaptft import data
from adaptft.errors import AdaptftError
from adaptft.records import to_dict

NUM_FILES = int(os.environ.get("ADAPTFT_FUZZ_FILES", "40"))
MOST_CPU_SECONDS = 5.0
"""Of one file of some hundred bytes, by the processor's clock: other work on the machine does not count."""


def read_or_refuse(path: Path, content: bytes, tokenizer: Any, cache: Path) -> None:
    path.write_bytes(content)
    began = time.process_time()
    try:
        read = data.tokenize(data.DataSettings(sources=(str(path),), max_bad_rows=1.0, num_proc=1), tokenizer)
        said = "\n".join([*data.report_lines(read.report), json.dumps(to_dict(read.report), ensure_ascii=False)])
        assert all(any(row["trained"][1:]) for row in read.rows)
    except AdaptftError as error:
        said = str(error)
        assert len(said.splitlines()) == 2, said
    finally:
        shutil.rmtree(cache / "rows", ignore_errors=True)
    said.encode("utf-8")
    assert time.process_time() - began < MOST_CPU_SECONDS


@pytest.fixture(scope="module")
def tokenizer(tokenizer_with: Callable[[str], Any]) -> Any:
    return tokenizer_with("qwen2.5")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_hostile_files_are_read_or_refused(suffix: str, tmp_path: Path, tokenizer: Any, own_cache: Path) -> None:
    @settings(
        max_examples=NUM_FILES, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        derandomize="ADAPTFT_FUZZ_FILES" not in os.environ,
    )  # fmt: skip
    @given(content=files(suffix))
    def run(content: bytes) -> None:
        read_or_refuse(tmp_path / f"rows{suffix}", content, tokenizer, own_cache)

    run()
